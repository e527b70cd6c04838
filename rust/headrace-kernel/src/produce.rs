//! A Produce request with one batch, and the usual response to it (versions 9 to 13).
//!
//! All fields but the correlation id and the batch are the same for each request to a partition, so they are encoded
//! once. The usual response says that the batch was appended and nothing else; [`ProduceFrames::appended`] leaves any
//! other response to the general decoder.

/// The first version of Produce with ids instead of names of topics.
const FIRST_WITH_IDS: i16 = 13;
/// The place of the correlation id in a request.
const CORRELATION_ID: std::ops::Range<usize> = 8..12;
/// Of a request: the ends of the partition, of the topic and of the request, which have no tagged fields.
const END: [u8; 3] = [0, 0, 0];
/// Of a partition in the usual response: no record errors, no message, no tagged fields.
const USUAL_END: [u8; 3] = [1, 0, 0];

/// What is the same for all requests of a producer.
#[derive(Debug, Clone)]
pub struct ProduceSettings {
    /// `client.id`.
    pub client_id: Option<String>,
    /// `acks`: 1, or −1 for all.
    pub acks: i16,
    /// `request.timeout.ms`.
    pub timeout_ms: i32,
}

/// The topic of a request: its name up to version 12, its id from version 13 on.
#[derive(Debug, Clone)]
pub enum ProduceTopic {
    /// Its name.
    Name(String),
    /// Its id.
    Id([u8; 16]),
}

/// Where a batch was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The offset of its first record.
    pub base_offset: i64,
    /// The time of the append, or −1 if records keep their own timestamps.
    pub log_append_time: i64,
}

/// The requests for one partition, and their responses.
#[derive(Debug, Clone)]
pub struct ProduceFrames {
    /// A request from its length to the number of its partition.
    head: Vec<u8>,
    /// A response from the correlation id, which is left out, to the number of its partition.
    expected: Vec<u8>,
}

impl ProduceFrames {
    /// Returns None if the version does not match the kind of topic, or the topic's name or `client.id` is too long.
    pub fn new(
        version: i16,
        settings: &ProduceSettings,
        topic: &ProduceTopic,
        partition: i32,
    ) -> Option<Self> {
        let mut place = vec![2]; // one topic
        match topic {
            ProduceTopic::Name(name) if version < FIRST_WITH_IDS => put_compact(&mut place, name.as_bytes()),
            ProduceTopic::Id(id) if version >= FIRST_WITH_IDS => place.extend_from_slice(id),
            _ => return None,
        }
        place.push(2); // one partition
        place.extend_from_slice(&partition.to_be_bytes());
        let mut head = vec![0; 4];
        head.extend_from_slice(&0i16.to_be_bytes()); // the key of Produce
        head.extend_from_slice(&version.to_be_bytes());
        head.extend_from_slice(&[0; 4]);
        match &settings.client_id {
            None => head.extend_from_slice(&(-1i16).to_be_bytes()),
            Some(id) => {
                head.extend_from_slice(&i16::try_from(id.len()).ok()?.to_be_bytes());
                head.extend_from_slice(id.as_bytes());
            }
        }
        head.extend_from_slice(&[0, 0]); // the header has no tagged fields, and there is no transactional id
        head.extend_from_slice(&settings.acks.to_be_bytes());
        head.extend_from_slice(&settings.timeout_ms.to_be_bytes());
        head.extend_from_slice(&place);
        let mut expected = vec![0]; // the header has no tagged fields
        expected.extend_from_slice(&place);
        Some(Self { head, expected })
    }

    /// A request, with its length.
    pub fn request(&self, correlation_id: i32, batch: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(self.head.len() + batch.len() + 8);
        frame.extend_from_slice(&self.head);
        put_compact(&mut frame, batch);
        frame.extend_from_slice(&END);
        let length = (frame.len() - 4) as i32;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        frame[CORRELATION_ID].copy_from_slice(&correlation_id.to_be_bytes());
        frame
    }

    /// What the usual response says, without its length. None for any other response.
    pub fn appended(&self, correlation_id: i32, frame: &[u8]) -> Option<Appended> {
        let rest =
            frame.strip_prefix(&correlation_id.to_be_bytes())?.strip_prefix(self.expected.as_slice())?;
        let (fields, end) = rest.split_at_checked(26)?;
        let (code, fields) = fields.split_first_chunk::<2>()?;
        let (base_offset, fields) = fields.split_first_chunk::<8>()?;
        let (log_append_time, _) = fields.split_first_chunk::<8>()?;
        // Then the start of the log. Behind the partition: the end of the topic, the throttle time, tagged fields.
        let is_usual = *code == [0; 2] && end.strip_prefix(&USUAL_END)? == [0; 6];
        is_usual.then_some(Appended {
            base_offset: i64::from_be_bytes(*base_offset),
            log_append_time: i64::from_be_bytes(*log_append_time),
        })
    }
}

/// Bytes after their length plus one, an unsigned varint.
fn put_compact(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut length = bytes.len() + 1;
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> ProduceSettings {
        ProduceSettings { client_id: Some("c".into()), acks: -1, timeout_ms: 30_000 }
    }

    fn usual_response() -> Vec<u8> {
        let mut frame = vec![0, 0, 0, 7, 0, 2, 2, b't', 2, 0, 0, 0, 3];
        frame.extend_from_slice(&[0, 0]);
        for number in [41i64, -1, 0] {
            frame.extend_from_slice(&number.to_be_bytes());
        }
        frame.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn a_request_has_its_length_its_correlation_id_and_the_batch() {
        let frames = ProduceFrames::new(12, &settings(), &ProduceTopic::Name("t".into()), 3).unwrap();
        let batch = [9; 200];
        let frame = frames.request(7, &batch);
        assert_eq!(frame[..4], (frame.len() as i32 - 4).to_be_bytes());
        assert_eq!(frame[4..12], [0, 0, 0, 12, 0, 0, 0, 7]);
        assert_eq!(frame[frame.len() - 205..frame.len() - 203], [0xc9, 0x01]);
        assert_eq!(frame[frame.len() - 203..frame.len() - 3], batch);
    }

    #[test]
    fn any_other_response_than_the_usual_one_is_left_to_the_general_decoder() {
        let frames = ProduceFrames::new(12, &settings(), &ProduceTopic::Name("t".into()), 3).unwrap();
        let usual = usual_response();
        let appended = Appended { base_offset: 41, log_append_time: -1 };
        assert_eq!(frames.appended(7, &usual), Some(appended));
        assert_eq!(frames.appended(8, &usual), None);
        let free = 15..39; // the offset, the time and the start of the log
        for place in (0..usual.len()).filter(|place| !free.contains(place)) {
            let mut other = usual.clone();
            other[place] ^= 1;
            assert_eq!(frames.appended(7, &other), None, "byte {place}");
        }
        for length in 0..usual.len() {
            assert_eq!(frames.appended(7, &usual[..length]), None);
        }
        assert_eq!(frames.appended(7, &[usual.as_slice(), &[0]].concat()), None);
    }

    #[test]
    fn names_and_ids_of_topics_go_with_their_versions() {
        assert!(ProduceFrames::new(13, &settings(), &ProduceTopic::Name("t".into()), 0).is_none());
        assert!(ProduceFrames::new(12, &settings(), &ProduceTopic::Id([1; 16]), 0).is_none());
        assert!(ProduceFrames::new(13, &settings(), &ProduceTopic::Id([1; 16]), 0).is_some());
    }
}
