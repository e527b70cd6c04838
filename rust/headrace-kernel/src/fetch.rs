//! The requests of an incremental fetch session (KIP-227), and the usual response to one (Fetch, versions 13 to 18).
//!
//! The usual response has records of some partitions, or of none, and nothing else. [`usual_response`] leaves any other
//! one to the general decoder: errors, throttling, aborted transactions, preferred replicas, tagged fields.

/// The first version without a replica id.
const FIRST_WITHOUT_REPLICA: i16 = 15;
/// The smallest partition of a response has more bytes than this.
const SMALLEST_PARTITION: usize = 32;

/// The id of a topic, and the number of the partition.
pub type TopicIdPartition = ([u8; 16], i32);

/// What is the same for all requests of a consumer.
#[derive(Debug, Clone)]
pub struct FetchSettings {
    /// `client.id`.
    pub client_id: Option<String>,
    /// `fetch.min.bytes`.
    pub min_bytes: i32,
    /// Whether `isolation.level` is `read_committed`.
    pub is_read_committed: bool,
    /// `client.rack`.
    pub rack: String,
}

/// A request of a session, without its partitions.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// The version of Fetch.
    pub version: i16,
    /// How long the broker may wait for records.
    pub max_wait_ms: i32,
    /// The limit of the response.
    pub max_bytes: i32,
    /// The id of the session.
    pub session_id: i32,
    /// Its epoch: one more with each request.
    pub session_epoch: i32,
}

/// What a request says about a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionRequest {
    /// The offset to fetch from.
    pub offset: i64,
    /// The leader's epoch, as the client knows it.
    pub leader_epoch: i32,
    /// The limit of the partition.
    pub max_bytes: i32,
}

/// A partition of the usual response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedPartition<'a> {
    /// Which one.
    pub partition: TopicIdPartition,
    /// The end of what is replicated.
    pub high_watermark: i64,
    /// The end of what is decided.
    pub last_stable_offset: i64,
    /// Batches of records. May be empty.
    pub records: &'a [u8],
}

/// The usual response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsualResponse<'a> {
    /// The id of the session.
    pub session_id: i32,
    /// The partitions with something new.
    pub partitions: Vec<FetchedPartition<'a>>,
}

impl FetchRequest {
    /// Replaces what is in `out` by the request with its length, for the partitions that change within the session.
    /// Those of a topic are adjacent.
    ///
    /// Returns None if `client.id` or `client.rack` is too long.
    pub fn encode(
        &self,
        correlation_id: i32,
        settings: &FetchSettings,
        partitions: &[(TopicIdPartition, PartitionRequest)],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        out.clear();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&1i16.to_be_bytes()); // the key of Fetch
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&correlation_id.to_be_bytes());
        match &settings.client_id {
            None => out.extend_from_slice(&(-1i16).to_be_bytes()),
            Some(id) => {
                out.extend_from_slice(&i16::try_from(id.len()).ok()?.to_be_bytes());
                out.extend_from_slice(id.as_bytes());
            }
        }
        out.push(0); // no tagged fields of the header
        if self.version < FIRST_WITHOUT_REPLICA {
            out.extend_from_slice(&(-1i32).to_be_bytes());
        }
        for number in [self.max_wait_ms, settings.min_bytes, self.max_bytes] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(settings.is_read_committed.into());
        out.extend_from_slice(&self.session_id.to_be_bytes());
        out.extend_from_slice(&self.session_epoch.to_be_bytes());
        let topics = || partitions.chunk_by(|(a, _), (b, _)| a.0 == b.0);
        put_size(out, topics().count());
        for topic in topics() {
            let Some((((id, _), _), _)) = topic.split_first() else { continue };
            out.extend_from_slice(id);
            put_size(out, topic.len());
            for ((_, number), request) in topic {
                out.extend_from_slice(&number.to_be_bytes());
                out.extend_from_slice(&request.leader_epoch.to_be_bytes());
                out.extend_from_slice(&request.offset.to_be_bytes());
                out.extend_from_slice(&(-1i32).to_be_bytes()); // the last fetched epoch, of followers
                out.extend_from_slice(&(-1i64).to_be_bytes()); // the start of their logs
                out.extend_from_slice(&request.max_bytes.to_be_bytes());
                out.push(0);
            }
            out.push(0);
        }
        put_size(out, 0); // no partition is forgotten
        i16::try_from(settings.rack.len()).ok()?;
        put_size(out, settings.rack.len());
        out.extend_from_slice(settings.rack.as_bytes());
        out.push(0);
        let length = i32::try_from(out.len() - 4).ok()?;
        out[..4].copy_from_slice(&length.to_be_bytes());
        Some(())
    }
}

/// Reads the usual response to a request, without its length. Returns None for any other response.
pub fn usual_response(frame: &[u8], correlation_id: i32) -> Option<UsualResponse<'_>> {
    let mut rest = frame.strip_prefix(&correlation_id.to_be_bytes())?;
    // No tagged fields of the header, no throttle time, no error.
    rest = rest.strip_prefix(&[0; 7])?;
    let session_id = take_i32(&mut rest)?;
    let mut partitions = Vec::new();
    for _ in 0..take_size(&mut rest)? {
        let (topic_id, after) = rest.split_first_chunk::<16>()?;
        rest = after;
        let count = take_size(&mut rest)?;
        partitions.reserve(count.min(rest.len() / SMALLEST_PARTITION));
        for _ in 0..count {
            let number = take_i32(&mut rest)?;
            rest = rest.strip_prefix(&[0; 2])?; // no error
            let high_watermark = take_i64(&mut rest)?;
            let last_stable_offset = take_i64(&mut rest)?;
            take_i64(&mut rest)?; // the start of the log
            // Aborted transactions: null (0) or none (1). Then no preferred replica.
            rest = rest.strip_prefix(&[0]).or_else(|| rest.strip_prefix(&[1]))?;
            rest = rest.strip_prefix(&(-1i32).to_be_bytes())?;
            let size = take_size(&mut rest)?;
            let (records, after) = rest.split_at_checked(size)?;
            rest = after.strip_prefix(&[0])?;
            partitions.push(FetchedPartition {
                partition: (*topic_id, number),
                high_watermark,
                last_stable_offset,
                records,
            });
        }
        rest = rest.strip_prefix(&[0])?;
    }
    (rest == [0]).then_some(UsualResponse { session_id, partitions })
}

fn take_i32(input: &mut &[u8]) -> Option<i32> {
    let (bytes, rest) = input.split_first_chunk::<4>()?;
    *input = rest;
    Some(i32::from_be_bytes(*bytes))
}

fn take_i64(input: &mut &[u8]) -> Option<i64> {
    let (bytes, rest) = input.split_first_chunk::<8>()?;
    *input = rest;
    Some(i64::from_be_bytes(*bytes))
}

/// The size of a compact array or string, an unsigned varint of one more than it. Null counts as empty.
fn take_size(input: &mut &[u8]) -> Option<usize> {
    let mut size = 0usize;
    for (index, &byte) in input.iter().take(5).enumerate() {
        size |= usize::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            *input = &input[index + 1..];
            return Some(size.saturating_sub(1));
        }
    }
    None
}

fn put_size(out: &mut Vec<u8>, size: usize) {
    let mut size = size + 1;
    while size >= 0x80 {
        out.push(size as u8 | 0x80);
        size >>= 7;
    }
    out.push(size as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 16] = [7; 16];

    fn response(records: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, 0, 9, 0];
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&77i32.to_be_bytes());
        frame.push(2);
        frame.extend_from_slice(&ID);
        frame.push(2);
        frame.extend_from_slice(&3i32.to_be_bytes());
        frame.extend_from_slice(&[0; 2]);
        for offset in [12i64, 11, 0] {
            frame.extend_from_slice(&offset.to_be_bytes());
        }
        frame.push(1);
        frame.extend_from_slice(&(-1i32).to_be_bytes());
        put_size(&mut frame, records.len());
        frame.extend_from_slice(records);
        frame.extend_from_slice(&[0, 0, 0]);
        frame
    }

    #[test]
    fn the_usual_response_is_read() {
        let records = [5; 300];
        let frame = response(&records);
        let found = usual_response(&frame, 9).unwrap();
        assert_eq!(found.session_id, 77);
        let partition = FetchedPartition {
            partition: (ID, 3),
            high_watermark: 12,
            last_stable_offset: 11,
            records: &records,
        };
        assert_eq!(found.partitions, [partition]);
    }

    #[test]
    fn a_response_without_partitions_is_usual() {
        let mut frame = vec![0, 0, 0, 9, 0];
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&77i32.to_be_bytes());
        frame.extend_from_slice(&[1, 0]);
        assert_eq!(usual_response(&frame, 9).unwrap().partitions, []);
        assert_eq!(usual_response(&frame, 8), None);
    }

    #[test]
    fn anything_else_is_left_to_the_general_decoder() {
        let frame = response(&[1, 2, 3]);
        let usual = usual_response(&frame, 9).unwrap();
        // Everything but offsets, session id, ids, numbers and records has one possible value.
        let free = [11..15, 16..32, 33..37, 39..63, 69..72];
        for at in 0..frame.len() {
            for value in [0x80, 0xff, 2, 3, 0x7f, 42] {
                let mut other = frame.clone();
                if other[at] == value || free.iter().any(|range| range.contains(&at)) {
                    continue;
                }
                other[at] = value;
                assert_ne!(usual_response(&other, 9).as_ref(), Some(&usual), "byte {at} is {value}");
            }
        }
        for length in 0..frame.len() {
            assert_eq!(usual_response(&frame[..length], 9), None);
        }
        assert_eq!(usual_response(&[&frame[..], &[0]].concat(), 9), None);
    }
}
