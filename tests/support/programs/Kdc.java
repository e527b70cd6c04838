import java.io.File;
import java.net.InetAddress;
import java.net.ServerSocket;
import org.apache.kerby.kerberos.kerb.server.KdcConfigKey;
import org.apache.kerby.kerberos.kerb.server.SimpleKdcServer;

/**
 * A Kerberos server on 127.0.0.1, until its input ends: java Kdc.java REALM DIRECTORY PRINCIPAL...
 *
 * Each principal gets a random key, stored in DIRECTORY/1.keytab, 2.keytab... Prints its port when it is ready.
 */
public class Kdc {
    public static void main(String[] args) throws Exception {
        int port;
        try (ServerSocket probe = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = probe.getLocalPort();
        }
        File directory = new File(args[1]);
        SimpleKdcServer kdc = new SimpleKdcServer();
        kdc.setKdcRealm(args[0]);
        kdc.setKdcHost("127.0.0.1");
        kdc.setKdcTcpPort(port);
        kdc.setAllowUdp(false);
        kdc.setWorkDir(directory);
        kdc.getKdcConfig().setLong(KdcConfigKey.MINIMUM_TICKET_LIFETIME, 1L); // of a second
        kdc.init();
        kdc.start();
        for (int i = 2; i < args.length; i++) {
            kdc.createPrincipals(args[i]);
            kdc.exportPrincipal(args[i], new File(directory, i - 1 + ".keytab"));
        }
        System.out.println(port);
        System.in.read();
        kdc.stop();
    }
}
