import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Churn in Java: threads, every second one by java.net, the others by java.nio. See ../README.md for what goes over the wire.
 * Churn server PORT BESIDE; Churn client PORT THREADS REQUESTS SIZE END SECONDS BESIDE SEED
 */
public class Churn {
    static final int PERIOD = 65521, CHUNK = 65536, PATIENCE = 20;
    static final List<String> ENDS = List.of("close", "linger0", "half", "kill");
    static final byte[] TABLE = new byte[PERIOD + CHUNK];
    static final AtomicLong connections = new AtomicLong(), bytes = new AtomicLong();
    static volatile boolean over;

    /** The connection ended otherwise than it should; it has been told. */
    static class Broken extends Exception {}

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static int mix(int x) {
        x *= (int) 2654435761L;
        x ^= x >>> 15;
        x *= (int) 2246822519L;
        return x ^ x >>> 13;
    }

    static int sizeOf(int id, int k, int most) {
        long h = mix(id + k * 40503) & 0xffffffffL;
        int limit = h % 8 == 0 ? most : most / 50;
        return 1 + (int) (h / 8 % Math.max(limit, 1));
    }

    static int start(int id, int direction, long position) {
        long from = (mix((id * 2 + direction) ^ 0x9e3779b9) & 0xffffffffL) % PERIOD;
        return (int) ((from + position) % PERIOD);
    }

    /** One connection, by streams or by a channel. */
    static class Peer implements AutoCloseable {
        final SocketChannel channel;
        final Socket socket;
        final byte[] buffer = new byte[CHUNK];
        boolean mayBreak;
        int id;

        Peer(SocketChannel channel, Socket socket) throws IOException {
            this.channel = channel;
            this.socket = socket != null ? socket : channel.socket();
            this.socket.setTcpNoDelay(true);
            this.socket.setSoTimeout(PATIENCE * 1000);
        }

        int read(byte[] to, int at, int length) throws IOException {
            // A channel knows no time-out of its own: the adaptor of its socket does.
            if (channel != null && id % 4 >= 2) {
                return channel.read(ByteBuffer.wrap(to, at, length));
            }
            return socket.getInputStream().read(to, at, length);
        }

        void write(int at, int length) throws IOException {
            if (channel != null) {
                for (ByteBuffer rest = ByteBuffer.wrap(TABLE, at, length); rest.hasRemaining();) {
                    channel.write(rest);
                }
            } else {
                socket.getOutputStream().write(TABLE, at, length);
            }
        }

        Broken fail(String where, IOException error) {
            if (error instanceof SocketTimeoutException) {
                say("timeout " + where + " of connection " + Integer.toUnsignedString(id));
            } else if (!mayBreak) {
                say("error " + where + " of connection " + Integer.toUnsignedString(id) + " " + error);
            }
            return new Broken();
        }

        void put(int direction, long position, int length) throws Broken {
            try {
                while (length > 0) {
                    int part = Math.min(length, CHUNK);
                    write(start(id, direction, position), part);
                    position += part;
                    length -= part;
                }
            } catch (IOException error) {
                throw fail("send", error);
            }
        }

        /** Receives and checks; false when the end came before a byte of it. */
        boolean take(int direction, long position, int length) throws Broken {
            int got = 0;
            while (got < length) {
                int done;
                try {
                    done = read(buffer, 0, Math.min(length - got, CHUNK));
                } catch (IOException error) {
                    throw fail("receive", error);
                }
                if (done < 0) {
                    if (got == 0) {
                        return false;
                    }
                    throw fail("receive", new IOException("the end came " + got + " bytes into " + length));
                }
                int from = start(id, direction, position + got), first = Arrays.mismatch(buffer, 0, done, TABLE, from, from + done);
                if (first >= 0) {
                    int wrong = 0;
                    for (int i = 0; i < done; i++) {
                        wrong += buffer[i] != TABLE[from + i] ? 1 : 0;
                    }
                    say("wrong " + wrong + " bytes from position " + (position + got + first) + " of connection " + Integer.toUnsignedString(id));
                }
                got += done;
            }
            return true;
        }

        @Override
        public void close() {
            try {
                socket.close();
            } catch (IOException error) {
                say("error close of connection " + Integer.toUnsignedString(id) + " " + error);
            }
        }
    }

    static void serve(SocketChannel accepted) {
        try (Peer peer = new Peer(accepted, null)) {
            ByteBuffer hello = ByteBuffer.allocate(16);
            while (hello.hasRemaining()) {
                if (accepted.read(hello) < 0) {
                    return;
                }
            }
            hello.flip();
            if (hello.getInt() != 0x4d43484e) {
                say("wrong 16 bytes of a greeting");
                return;
            }
            peer.id = hello.getInt();
            int most = hello.getInt();
            String end = ENDS.get(hello.getInt());
            peer.mayBreak = end.equals("linger0") || end.equals("kill");
            long position = 0;
            for (int k = 0;; k++) {
                int length = sizeOf(peer.id, k, most);
                if (!peer.take(0, position, length)) {
                    break;
                }
                peer.put(1, position, length);
                position += length;
            }
            if (end.equals("half")) {
                peer.put(1, position, sizeOf(peer.id, 65535, most));
            }
        } catch (IOException | Broken told) {
            // A client that was killed during its greeting, or what has been told.
        }
    }

    static void beside(String how) {
        if (how.equals("none")) {
            return;
        }
        daemon(() -> {
            while (!over) {
                try {
                    new ProcessBuilder("/bin/true").start().waitFor();
                    Thread.sleep((long) (Math.random() * 20));
                } catch (IOException | InterruptedException error) {
                    say("error beside: " + error);
                }
            }
        });
    }

    static Thread daemon(Runnable run) {
        Thread thread = new Thread(null, run, "churn", 256 * 1024);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    static void server(int port) throws IOException {
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(InetAddress.getByName("127.0.0.1"), port), 1000);
        say("ready");
        while (true) {
            SocketChannel accepted = listener.accept();
            daemon(() -> serve(accepted));
        }
    }

    static void connection(int port, int id, int requests, int most, String end) {
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", port);
        Peer opened;
        try {
            if (id % 2 == 0) {
                opened = new Peer(SocketChannel.open(address), null);
            } else {
                Socket socket = new Socket();
                socket.connect(address, PATIENCE * 1000);
                opened = new Peer(null, socket);
            }
        } catch (IOException error) {
            if (!String.valueOf(error.getMessage()).contains("Cannot assign requested address")) {
                say("error connect of connection " + Integer.toUnsignedString(id) + " " + error);
            }
            pause(10);
            return;
        }
        try (Peer peer = opened) {
            peer.id = id;
            connections.incrementAndGet();
            ByteBuffer hello = ByteBuffer.allocate(16).putInt(0x4d43484e).putInt(id).putInt(most).putInt(ENDS.indexOf(end)).flip();
            if (peer.channel != null) {
                peer.channel.write(hello);
            } else {
                peer.socket.getOutputStream().write(hello.array());
            }
            long position = 0;
            for (int k = 0; k < requests && !over; k++) {
                int length = sizeOf(id, k, most);
                peer.put(0, position, length);
                if (!peer.take(1, position, length)) {
                    say("error the end came in place of an answer of connection " + Integer.toUnsignedString(id));
                    return;
                }
                position += length;
                bytes.addAndGet(2L * length);
            }
            if (end.equals("half")) {
                peer.socket.shutdownOutput();
                if (!peer.take(1, position, sizeOf(id, 65535, most))) {
                    say("error nothing came after the half close of connection " + Integer.toUnsignedString(id));
                } else if (peer.read(peer.buffer, 0, 1) >= 0) {
                    say("error no end after the half close of connection " + Integer.toUnsignedString(id));
                }
            }
            if (end.equals("linger0")) {
                peer.socket.setSoLinger(true, 0);
            }
        } catch (Broken told) {
            // It has been told.
        } catch (IOException error) {
            say((error instanceof SocketTimeoutException ? "timeout" : "error") + " of connection " + Integer.toUnsignedString(id) + " " + error);
        }
    }

    static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static void client(int port, int threads, int requests, int most, String end, int seconds, int seed) throws InterruptedException {
        Thread[] all = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            int own = seed + i * 1000003;
            all[i] = daemon(() -> {
                for (int number = 0; !over; number++) {
                    connection(port, own + number, requests, most, end);
                }
            });
        }
        for (int i = 0; i < seconds * 10; i++) {
            pause(100);
            say("progress " + connections + " " + bytes);
        }
        over = true;
        for (Thread thread : all) {
            thread.join();
        }
        say("done " + connections + " " + bytes);
    }

    public static void main(String[] words) throws Exception {
        int x = 12345;
        for (int i = 0; i < PERIOD; i++) {
            x = (x * 1103515245 + 12345) & 0x7fffffff;
            TABLE[i] = (byte) (x >> 16);
        }
        for (int i = 0; i < CHUNK; i++) {
            TABLE[PERIOD + i] = TABLE[i];
        }
        int port = Integer.parseInt(words[1]);
        if (words[0].equals("server")) {
            beside(words[2]);
            server(port);
        } else {
            beside(words[7]);
            client(port, Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4]), words[5], Integer.parseInt(words[6]),
                    Integer.parseUnsignedInt(words[8]));
        }
    }
}
