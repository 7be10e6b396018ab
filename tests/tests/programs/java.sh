# needs: java javac
# NIO with a selector, and a stream socket closed while another thread reads it.
cat > T.java <<'X'
import java.io.*; import java.net.*; import java.nio.*; import java.nio.channels.*; import java.util.*;
public class T {
  public static void main(String[] a) throws Exception {
    ServerSocketChannel l = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0)); int port = l.socket().getLocalPort();
    Thread server = new Thread(() -> { try { serve(l); } catch (Exception e) { System.out.println(e); } }); server.setDaemon(true); server.start();
    long sum = 0;
    for (int c = 0; c < 5; c++) try (SocketChannel s = SocketChannel.open(new InetSocketAddress("127.0.0.1", port))) {
      for (int i = 0; i < 300; i++) { byte[] m = new byte[1 + i * 7]; Arrays.fill(m, (byte) i); s.write(ByteBuffer.wrap(m)); ByteBuffer b = ByteBuffer.allocate(m.length); while (b.hasRemaining()) if (s.read(b) < 0) throw new EOFException(); for (byte x : b.array()) sum += x; }
    }
    System.out.println("sum " + sum);
    Socket s = new Socket("127.0.0.1", port); OutputStream o = s.getOutputStream(); InputStream in = s.getInputStream();
    for (int i = 0; i < 50; i++) { o.write(i); if (in.read() != i) throw new Exception("echo"); }
    Thread t = new Thread(() -> { try { System.out.println("read " + in.read()); } catch (IOException e) { System.out.println(e.getClass().getSimpleName()); } });
    t.start(); Thread.sleep(200); s.close(); t.join(); System.out.println("done");
  }
  static void serve(ServerSocketChannel l) throws Exception {
    Selector sel = Selector.open(); l.configureBlocking(false); l.register(sel, SelectionKey.OP_ACCEPT); ByteBuffer b = ByteBuffer.allocate(4096);
    while (true) { sel.select(); for (Iterator<SelectionKey> it = sel.selectedKeys().iterator(); it.hasNext();) { SelectionKey k = it.next(); it.remove();
      if (k.isAcceptable()) { SocketChannel c = l.accept(); c.configureBlocking(false); c.register(sel, SelectionKey.OP_READ); }
      else { SocketChannel c = (SocketChannel) k.channel(); b.clear(); if (c.read(b) < 0) c.close(); else { b.flip(); while (b.hasRemaining()) c.write(b); } } } }
  }
}
X
javac -J-XX:-UsePerfData T.java && java -XX:-UsePerfData -Xshare:auto -XX:TieredStopAtLevel=1 T
