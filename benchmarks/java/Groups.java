import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Java's consumer in `joining.py` and `rebalancing.py`: the same steps as theirs, and milliseconds as JSON.
 *
 *   joining SERVERS TOPIC PROTOCOL SAMPLES                                       [sample, ...]
 *   rebalancing SERVERS TOPIC PROTOCOL PARTITIONS MEMBERS ROUNDS HEARTBEAT_MS    [[join, ...], [close, ...]]
 */
public class Groups {
    private static final Duration POLL = Duration.ofSeconds(1);
    private static final long TOO_LATE_MS = 60_000;

    public static void main(String[] args) {
        try {
            System.out.println(measured(args));
        } catch (Exception error) {
            System.err.println(error);  // in one line, for the report
            System.exit(1);
        }
    }

    private static List<?> measured(String[] args) throws Exception {
        String servers = args[1], topic = args[2], protocol = args[3];
        return switch (args[0]) {
            case "joining" -> joining(servers, topic, protocol, Integer.parseInt(args[4]));
            case "rebalancing" -> rebalancing(servers, topic, protocol,
                Integer.parseInt(args[4]), Integer.parseInt(args[5]), Integer.parseInt(args[6]), args[7]);
            default -> throw new IllegalArgumentException(args[0]);
        };
    }

    private static Map<String, Object> settings(String servers, String protocol) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", "java-" + UUID.randomUUID());
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        return settings;
    }

    private static double millisecondsSince(long nanos) {
        return (System.nanoTime() - nanos) / 1e6;
    }

    // -- joining --------------------------------------------------------------------------------------------------

    private static List<Double> joining(String servers, String topic, String protocol, int samples) throws Exception {
        List<Double> found = new ArrayList<>();
        for (int number = 0; number < samples; number++) {
            try (var consumer = new KafkaConsumer<byte[], byte[]>(settings(servers, protocol))) {
                long started = System.nanoTime();
                consumer.subscribe(List.of(topic));
                while (consumer.poll(POLL).isEmpty()) {
                    if (millisecondsSince(started) > TOO_LATE_MS) throw new TimeoutException("no record came");
                }
                found.add(millisecondsSince(started));
            }
        }
        return found;
    }

    // -- rebalancing ----------------------------------------------------------------------------------------------

    private static List<List<Double>> rebalancing(
            String servers, String topic, String protocol, int partitions, int members, int rounds, String heartbeat)
            throws Exception {
        Map<String, Object> settings = settings(servers, protocol);
        if (protocol.equals("classic")) {
            settings.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
            settings.put("heartbeat.interval.ms", heartbeat);
        }
        Ledger ledger = new Ledger(partitions);
        List<Member> all = new ArrayList<>();
        for (int number = 0; number < members; number++) all.add(new Member(settings, topic, ledger));
        ledger.await(members);
        List<Double> joins = new ArrayList<>(), closes = new ArrayList<>();
        for (int round = 0; round < rounds; round++) {
            letAHeartbeatPass(Long.parseLong(heartbeat));
            Member newcomer = new Member(settings, topic, ledger);
            all.add(newcomer);
            long rest = ledger.await(members + 1);
            joins.add((rest - newcomer.subscribedAt) / 1e6);
            letAHeartbeatPass(Long.parseLong(heartbeat));
            newcomer.leaves = true;
            rest = ledger.await(members);
            closes.add((rest - newcomer.closedAt) / 1e6);
        }
        for (Member member : all) member.leaves = true;
        for (Member member : all) member.join(TOO_LATE_MS);
        return List.of(joins, closes);
    }

    private static void letAHeartbeatPass(long milliseconds) throws InterruptedException {
        Thread.sleep(ThreadLocalRandom.current().nextLong(milliseconds, 2 * milliseconds));
    }

    /** The owners of partitions. Members write, one thread waits. */
    private static final class Ledger {
        private final int partitions;
        private final Map<Member, Set<Integer>> owned = new HashMap<>();
        private long changedAt;

        Ledger(int partitions) {
            this.partitions = partitions;
        }

        synchronized void take(Member member, Collection<TopicPartition> given) {
            for (TopicPartition each : given) share(member).add(each.partition());
            note();
        }

        synchronized void drop(Member member, Collection<TopicPartition> gone) {
            for (TopicPartition each : gone) share(member).remove(each.partition());
            note();
        }

        private Set<Integer> share(Member member) {
            return owned.computeIfAbsent(member, nobody -> new HashSet<>());
        }

        private void note() {
            changedAt = System.nanoTime();
            notifyAll();
        }

        private boolean isAtRest(int members) {
            Set<Integer> all = new HashSet<>();
            int owners = 0, sum = 0, fewest = Integer.MAX_VALUE, most = 0;
            for (Set<Integer> share : owned.values()) {
                if (share.isEmpty()) continue;
                owners++;
                all.addAll(share);
                sum += share.size();
                fewest = Math.min(fewest, share.size());
                most = Math.max(most, share.size());
            }
            return owners == members && sum == partitions && all.size() == partitions && most - fewest <= 1;
        }

        synchronized long await(int members) throws Exception {
            long started = System.nanoTime();
            while (!isAtRest(members)) {
                if (millisecondsSince(started) > TOO_LATE_MS) {
                    throw new TimeoutException(members + " members were not stable in time");
                }
                wait(1000);
            }
            return changedAt;
        }
    }

    /** A thread with a consumer. */
    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final Map<String, Object> settings;
        private final String topic;
        private final Ledger ledger;
        volatile boolean leaves;
        volatile long subscribedAt, closedAt;

        Member(Map<String, Object> settings, String topic, Ledger ledger) {
            this.settings = settings;
            this.topic = topic;
            this.ledger = ledger;
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            var consumer = new KafkaConsumer<byte[], byte[]>(settings);
            subscribedAt = System.nanoTime();
            consumer.subscribe(List.of(topic), this);
            while (!leaves) consumer.poll(POLL);
            closedAt = System.nanoTime();
            consumer.close();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            ledger.take(this, partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            ledger.drop(this, partitions);
        }
    }
}
