import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;

/** Writes data/java: batches as Kafka's own producer and broker code makes them. Record i of every file is the same. */
public class WriteBatches {
    private static final long PRODUCER = 4001L;

    public static void main(String[] args) throws Exception {
        Path directory = Path.of(args[0]);
        Object[][] codecs = {
            {"none", Compression.NONE}, {"gzip", Compression.gzip().build()}, {"snappy", Compression.snappy().build()},
            {"lz4", Compression.lz4().build()}, {"zstd", Compression.zstd().build()},
        };
        for (Object[] codec : codecs) {
            write(directory.resolve(codec[0] + ".bin"), ordinary((Compression) codec[1], TimestampType.CREATE_TIME, 2000));
            // Small, so that a fuzzer can use it as a seed.
            write(directory.resolve("small-" + codec[0] + ".bin"), ordinary((Compression) codec[1], TimestampType.CREATE_TIME, 8));
        }
        write(directory.resolve("log-append-time.bin"), ordinary(Compression.NONE, TimestampType.LOG_APPEND_TIME, 20));
        write(directory.resolve("cut-off.bin"), cutOff(ordinary(Compression.NONE, TimestampType.CREATE_TIME, 20)));
        write(directory.resolve("transactions.bin"), transactions());
        write(directory.resolve("empty.bin"), empty());
    }

    /** Two batches of `count` records each, from offset 500 on. */
    private static ByteBuffer ordinary(Compression codec, TimestampType type, int count) {
        ByteBuffer out = ByteBuffer.allocate(1 << 21);
        for (int batch = 0; batch < 2; batch++) {
            MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), RecordBatch.MAGIC_VALUE_V2,
                codec, type, 500 + batch * count, 1_700_000_999_000L, RecordBatch.NO_PRODUCER_ID, RecordBatch.NO_PRODUCER_EPOCH,
                RecordBatch.NO_SEQUENCE, false, 11 + batch);
            for (int i = 0; i < count; i++) {
                append(builder, batch * count + i);
            }
            out.put(builder.build().buffer());
        }
        return out.flip();
    }

    private static void append(MemoryRecordsBuilder builder, int i) {
        byte[] key = i % 3 == 0 ? null : ("key-" + i).getBytes();
        byte[] value = i % 7 == 6 ? null : ("value-" + i).repeat(i % 5).getBytes();
        Header[] headers = i % 4 == 0
            ? new Header[] {new RecordHeader("trace", ("t" + i).getBytes()), new RecordHeader("trace", (byte[]) null)}
            : new Header[0];
        builder.append(1_700_000_000_000L + i, key, value, headers);
    }

    /** An aborted transaction from 0, its marker, a committed one from 3, its marker, one record outside any. */
    private static ByteBuffer transactions() {
        ByteBuffer out = ByteBuffer.allocate(1 << 16);
        long[] starts = {0, 3};
        ControlRecordType[] ends = {ControlRecordType.ABORT, ControlRecordType.COMMIT};
        for (int t = 0; t < 2; t++) {
            MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 12), RecordBatch.MAGIC_VALUE_V2,
                Compression.NONE, TimestampType.CREATE_TIME, starts[t], RecordBatch.NO_TIMESTAMP, PRODUCER, (short) 2,
                2 * t, true, 11);
            append(builder, (int) starts[t]);
            append(builder, (int) starts[t] + 1);
            out.put(builder.build().buffer());
            out.put(MemoryRecords.withEndTransactionMarker(starts[t] + 2, 1_700_000_000_000L, 11, PRODUCER, (short) 2,
                new EndTransactionMarker(ends[t], 5)).buffer());
        }
        MemoryRecordsBuilder last = MemoryRecords.builder(ByteBuffer.allocate(1 << 12), Compression.NONE,
            TimestampType.CREATE_TIME, 6);
        append(last, 6);
        out.put(last.build().buffer());
        return out.flip();
    }

    /** What compaction leaves of a batch all of whose records are gone: offsets 10 to 19. */
    private static ByteBuffer empty() {
        ByteBuffer out = ByteBuffer.allocate(1 << 10);
        DefaultRecordBatch.writeEmptyHeader(out, RecordBatch.MAGIC_VALUE_V2, PRODUCER, (short) 1, 9, 10, 19,
            11, TimestampType.CREATE_TIME, 1_700_000_000_000L, false, false);
        return out.flip();
    }

    private static ByteBuffer cutOff(ByteBuffer whole) {
        return whole.limit(whole.limit() - 100);
    }

    private static void write(Path path, ByteBuffer data) throws Exception {
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        Files.write(path, bytes);
    }
}
