import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Java's share consumer in `share.py`: the same steps as there, and its figures as JSON.
 *
 *   SERVERS GROUP TOPIC MODE LIMIT RECORDS WARM_UP_MS MS
 */
public class Shares {
    private static final Duration POLL = Duration.ofSeconds(1);
    private static final long TOO_LATE_NS = 30_000_000_000L;

    public static void main(String[] args) {
        try {
            measure(args);
        } catch (Exception error) {
            System.err.println(error);  // in one line, for the report
            System.exit(1);
        }
    }

    private static void measure(String[] args) throws Exception {
        String servers = args[0], group = args[1], topic = args[2];
        long wanted = Long.parseLong(args[5]);
        long warmUp = Long.parseLong(args[6]) * 1_000_000, limit = Long.parseLong(args[7]) * 1_000_000;
        startAtTheBeginning(servers, group);
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", servers);
        config.put("group.id", group);
        config.put("share.acquire.mode", args[3]);
        config.put("max.poll.records", args[4]);
        try (var consumer =
                new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            long asked = System.nanoTime(), first = 0;
            while ((first = consumer.poll(POLL).count()) == 0) {
                if (System.nanoTime() - asked > TOO_LATE_NS) {
                    throw new IllegalStateException("no record came in time");
                }
            }
            long began = System.nanoTime();
            while (first < wanted / 5 && System.nanoTime() - began < warmUp) {
                first += consumer.poll(POLL).count();
            }
            long started = System.nanoTime(), count = 0, polls = 0;
            while (first + count < wanted && System.nanoTime() - started < limit) {
                count += consumer.poll(POLL).count();
                polls++;
            }
            double seconds = (System.nanoTime() - started) / 1e9;
            System.out.printf(
                "{\"rate\": %f, \"polls\": %f, \"records\": %d}%n", count / seconds, polls / seconds, first + count);
        }
    }

    private static void startAtTheBeginning(String servers, String group) throws Exception {
        var entry = new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(entry))).all().get();
        }
    }
}
