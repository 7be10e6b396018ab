# needs: java javac
# Java RMI between two virtual machines: calls, a megabyte there and back, a remote exception, and a call back into the client.
cat > Echo.java <<'X'
import java.rmi.*; import java.rmi.registry.*; import java.rmi.server.*;
public class Echo {
  public interface Heard extends Remote { void heard(String word) throws RemoteException; }
  public interface Voice extends Remote {
    long add(long a, long b) throws RemoteException;
    byte[] turn(byte[] b) throws RemoteException;
    void fail(String why) throws RemoteException;
    int tell(Heard who, int times) throws RemoteException;
    void end() throws RemoteException;
  }
  static class Speaker implements Voice {
    public long add(long a, long b) { return a + b; }
    public byte[] turn(byte[] b) { byte[] r = new byte[b.length]; for (int i = 0; i < b.length; i++) r[i] = b[b.length - 1 - i]; return r; }
    public void fail(String why) { throw new IllegalStateException(why); }
    public int tell(Heard who, int times) throws RemoteException { for (int i = 0; i < times; i++) who.heard("word " + i); return times; }
    public void end() { new Thread(() -> { try { Thread.sleep(200); } catch (InterruptedException e) { } System.exit(0); }).start(); }
  }
  static Voice kept;
  public static void main(String[] a) throws Exception {
    System.setProperty("java.rmi.server.hostname", "127.0.0.1");
    int port = Integer.parseInt(a[1]);
    if (a[0].equals("serve")) {
      kept = new Speaker();
      Voice stub = (Voice) UnicastRemoteObject.exportObject(kept, Integer.parseInt(a[2]));
      LocateRegistry.createRegistry(port).rebind("voice", stub);
      return;
    }
    Voice v = (Voice) LocateRegistry.getRegistry("127.0.0.1", port).lookup("voice");
    long sum = 0;
    for (int i = 0; i < 2000; i++) sum = v.add(sum, i);
    System.out.println("sum " + sum);
    byte[] b = new byte[1 << 20]; for (int i = 0; i < b.length; i++) b[i] = (byte) (i * 31);
    byte[] r = v.turn(v.turn(b));
    System.out.println("turned " + java.util.Arrays.equals(b, r));
    try { v.fail("on purpose"); } catch (IllegalStateException e) { System.out.println(e.getMessage()); }
    int[] count = new int[1];
    Heard h = word -> count[0]++;
    Heard stub = (Heard) UnicastRemoteObject.exportObject(h, 0);
    System.out.println("told " + v.tell(stub, 100) + " heard " + count[0]);
    v.end();
    System.exit(0);
  }
}
X
javac -J-XX:-UsePerfData Echo.java || exit 1
java -XX:-UsePerfData -Xshare:auto -XX:TieredStopAtLevel=1 Echo serve $P1 $P2 & s=$!
until java -XX:-UsePerfData -Xshare:auto -XX:TieredStopAtLevel=1 Echo call $P1 2> err; do kill -0 $s 2> /dev/null || { cat err; exit 1; }; sleep 0.2; done
wait $s
echo "server $?"
