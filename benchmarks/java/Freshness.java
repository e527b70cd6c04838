import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The consumer of `freshness_readers.py` for Java: the same loop, and the same output.
 *
 *   SERVERS TOPIC GROUP NAME=VALUE...
 */
public class Freshness {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final long REPORT_EVERY_MS = 20;

    private static double since = 0;
    private static long newest = 0;
    private static long old = 0;

    public static void main(String[] args) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        for (String setting : List.of(args).subList(3, args.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings)) {
            consumer.subscribe(List.of(args[1]), new ConsumerRebalanceListener() {
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    if (since == 0 && !partitions.isEmpty()) {
                        since = System.currentTimeMillis();
                        System.out.println("[" + since + "]");
                    }
                }

                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}
            });
            read(consumer);
        }
    }

    private static void read(KafkaConsumer<byte[], byte[]> consumer) {
        long told = 0;
        boolean toldOfLive = false;
        while (true) {
            for (var record : consumer.poll(POLL)) {
                long timestamp = record.timestamp();
                if (timestamp > newest) newest = timestamp;
                if (timestamp < since) old++;
            }
            long now = System.currentTimeMillis();
            boolean isFirst = !toldOfLive && newest >= since;
            if (newest > 0 && (isFirst || now - told >= REPORT_EVERY_MS)) {
                told = now;
                toldOfLive |= isFirst;
                System.out.println("[" + now + ", " + newest + ", " + old + "]");
            }
        }
    }
}
