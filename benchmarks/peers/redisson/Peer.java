// Redisson's delayed queue: offers from threads (it has no batches of them); takes one at a time, or many in a poll.
// Obeys the command line of adapter.py.
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

public class Peer {
    static final int THREADS = 8;
    static final long DUE =
            System.currentTimeMillis() + Long.parseLong(System.getenv().getOrDefault("PEERS_DELAY_MS", "0"));

    static RBlockingQueue<String> queue;
    static RDelayedQueue<String> delayed;

    interface Step {
        void run(int index) throws Exception;
    }

    static void byThreads(int threads, int number, Step step) throws InterruptedException {
        List<Thread> all = new ArrayList<>();
        for (int first = 0; first < threads; first++) {
            int from = first;
            all.add(new Thread(() -> {
                try {
                    for (int index = from; index < number; index += threads) step.run(index);
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            }));
        }
        all.forEach(Thread::start);
        for (Thread each : all) each.join();
    }

    static void offer(int threads, int number) throws InterruptedException {
        byThreads(threads, number, index -> delayed.offer(
                String.format("order:%014d", index),
                Math.max(DUE - System.currentTimeMillis(), 0), TimeUnit.MILLISECONDS));
    }

    static void work(String setting) throws Exception {
        boolean batch = setting.equals("batch");
        byThreads(batch ? 1 : Integer.parseInt(setting), Integer.MAX_VALUE - THREADS, index -> {
            if (!batch) queue.take();
            else if (queue.poll(500).isEmpty()) Thread.sleep(10);
        });
    }

    static void late(int perSecond, int number) throws Exception {
        List<Long> found = Collections.synchronizedList(new ArrayList<>());
        Thread offering = new Thread(() -> {
            try {
                long started = System.nanoTime();
                for (int index = 0; index < number; index++) {
                    long wait = started + index * 1_000_000_000L / perSecond - System.nanoTime();
                    if (wait > 0) TimeUnit.NANOSECONDS.sleep(wait);
                    delayed.offer(String.valueOf(System.currentTimeMillis() + 1000), 1, TimeUnit.SECONDS);
                }
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        offering.start();
        byThreads(THREADS, number, index -> {
            String due = queue.take();
            found.add(System.currentTimeMillis() - Long.parseLong(due));
        });
        System.out.println(found);
    }

    static double cpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    public static void main(String[] words) throws Exception {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress(words[1]);
        RedissonClient client = Redisson.create(config);
        queue = client.getBlockingQueue("peers");
        delayed = client.getDelayedQueue(queue);
        if (words[0].equals("work")) {
            work(words[2]);
        } else if (words[0].equals("late")) {
            late(Integer.parseInt(words[2]), Integer.parseInt(words[3]));
        } else {
            int threads = Integer.parseInt(words[2]);
            offer(threads, 5000); // compiled
            double cpuBefore = cpuSeconds();
            long started = System.nanoTime();
            offer(threads, Integer.parseInt(words[3]));
            double took = (System.nanoTime() - started) / 1e9;
            System.out.printf("{\"took_s\": %f, \"cpu_s\": %f}%n", took, cpuSeconds() - cpuBefore);
        }
        client.shutdown();
    }
}
