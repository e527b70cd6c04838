import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Reads keys, hexadecimal, one a line. Writes the partition of each one that Java's producer picks among so many. */
public class PartitionOracle {
    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.append(BuiltInPartitioner.partitionForKey(HexFormat.of().parseHex(line), count)).append('\n');
        }
        System.out.print(out);
    }
}
