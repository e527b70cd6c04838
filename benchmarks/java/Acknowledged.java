import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java's producer in `write_latency.py`: the same steps as there. Prints the milliseconds of each record as a JSON list.
 *
 *   SERVERS TOPIC RECORDS WARM_UP RECORD_BYTES
 */
public class Acknowledged {
    public static void main(String[] args) {
        try {
            measure(args);
        } catch (Exception error) {
            System.err.println(error);  // in one line, for the report
            System.exit(1);
        }
    }

    private static void measure(String[] args) throws Exception {
        String topic = args[1], format = "%0" + args[4] + "d";
        int records = Integer.parseInt(args[2]), warmUp = Integer.parseInt(args[3]);
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", args[0]);
        config.put("acks", "all");
        config.put("enable.idempotence", "true");
        config.put("linger.ms", "0");
        StringJoiner found = new StringJoiner(", ", "[", "]");
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int number = 0; number < warmUp + records; number++) {
                byte[] value = String.format(format, number).getBytes(StandardCharsets.UTF_8);
                long started = System.nanoTime();
                producer.send(new ProducerRecord<byte[], byte[]>(topic, 0, null, value)).get();
                if (number >= warmUp) {
                    found.add(String.format(Locale.ROOT, "%.4f", (System.nanoTime() - started) / 1e6));
                }
            }
        }
        System.out.println(found);
    }
}
