import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.utils.Utils;

/**
 * Responds to each input line with one line, using Kafka's own classes. Blobs are hexadecimal.
 *
 *   subscription VERSION BLOB                               the same subscription as Java writes it
 *   assignment VERSION BLOB                                 the same assignment as Java writes it
 *   userdata ASSIGNOR GENERATION ASSIGNMENT                 the user data of a member with this assignment
 *   assign ASSIGNOR TOPIC=COUNT,... MEMBER/INSTANCE/SUBSCRIPTION ...   MEMBER/ASSIGNMENT ...
 */
public class AssignorOracle {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            out.println(switch (words[0]) {
                case "subscription" -> hex(ConsumerProtocol.serializeSubscription(
                    ConsumerProtocol.deserializeSubscription(bytes(words[2])), Short.parseShort(words[1])));
                case "assignment" -> hex(ConsumerProtocol.serializeAssignment(
                    ConsumerProtocol.deserializeAssignment(bytes(words[2])), Short.parseShort(words[1])));
                case "userdata" -> userData(words[1], Integer.parseInt(words[2]), words[3]);
                case "assign" -> assign(words);
                default -> throw new IllegalArgumentException(line);
            });
        }
        out.flush();
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static String userData(String name, int generation, String assignment) {
        ConsumerPartitionAssignor assignor = assignor(name);
        assignor.onAssignment(
            ConsumerProtocol.deserializeAssignment(bytes(assignment)),
            new ConsumerGroupMetadata("group", generation, "member", Optional.empty()));
        return hex(assignor.subscriptionUserData(Set.of()));
    }

    private static String assign(String[] words) {
        Node node = new Node(0, "localhost", 9092);
        Node[] replicas = {node};
        List<PartitionInfo> partitions = new ArrayList<>();
        for (String topic : words[2].split(",")) {
            String[] parts = topic.split("=");
            for (int number = 0; number < Integer.parseInt(parts[1]); number++)
                partitions.add(new PartitionInfo(parts[0], number, node, replicas, replicas));
        }
        Cluster cluster = new Cluster("cluster", List.of(node), partitions, Set.of(), Set.of());

        Map<String, Subscription> members = new HashMap<>();
        for (int at = 3; at < words.length; at++) {
            String[] parts = words[at].split("/");
            Subscription subscription = ConsumerProtocol.deserializeSubscription(bytes(parts[2]));
            subscription.setGroupInstanceId(parts[1].isEmpty() ? Optional.empty() : Optional.of(parts[1]));
            members.put(parts[0], subscription);
        }

        Map<String, Assignment> result =
            assignor(words[1]).assign(cluster, new GroupSubscription(members)).groupAssignment();
        List<String> answer = new ArrayList<>();
        new TreeMap<>(result).forEach(
            (member, given) -> answer.add(member + "/" + hex(ConsumerProtocol.serializeAssignment(given))));
        return String.join(" ", answer);
    }

    private static ByteBuffer bytes(String hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex));
    }

    private static String hex(ByteBuffer buffer) {
        return HexFormat.of().formatHex(Utils.toArray(buffer));
    }
}
