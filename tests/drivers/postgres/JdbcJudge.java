import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;
import org.postgresql.ds.PGSimpleDataSource;

/**
 * pgJDBC and HikariCP at the PostgreSQL port, over a hand-over.
 *
 * <p>Arguments: the port, and three credentials of one lock with rising tokens.
 */
public class JdbcJudge {
  static String url;

  interface Attempt {
    void run() throws Exception;
  }

  public static void main(String[] args) throws Exception {
    url = "jdbc:postgresql://127.0.0.1:" + args[0] + "/shop";
    String first = args[1], second = args[2], third = args[3];
    transactions(first);
    batches(first);
    rows(first);
    copies(first);
    notifications(first);
    cancels(first);
    tokenByOtherWays(first);
    handOver(first, second);
    pool(second, third);
  }

  /** Connects with these properties, a name and a value in turn. */
  static Connection connect(String credential, String... more) throws SQLException {
    Properties properties = new Properties();
    properties.setProperty("user", "app");
    properties.setProperty("password", credential);
    for (int at = 0; at < more.length; at += 2) properties.setProperty(more[at], more[at + 1]);
    return DriverManager.getConnection(url, properties);
  }

  static void check(boolean holds, Object text) {
    if (!holds) throw new AssertionError(text);
  }

  static void fails(String sqlstate, Attempt attempt) throws Exception {
    try {
      attempt.run();
    } catch (SQLException error) {
      check(sqlstate.equals(error.getSQLState()), error.getSQLState() + ": " + error);
      return;
    }
    throw new AssertionError("no error " + sqlstate);
  }

  static void run(Connection conn, String sql) throws SQLException {
    try (Statement statement = conn.createStatement()) {
      statement.execute(sql);
    }
  }

  static String one(Connection conn, String sql) throws SQLException {
    try (Statement statement = conn.createStatement();
        ResultSet rows = statement.executeQuery(sql)) {
      check(rows.next(), sql);
      return rows.getString(1);
    }
  }

  static void transactions(String first) throws Exception {
    try (Connection conn = connect(first)) {
      run(conn, "CREATE TABLE j (id serial PRIMARY KEY, body text NOT NULL UNIQUE)");
      conn.setAutoCommit(false);
      run(conn, "INSERT INTO j (body) VALUES ('one')");
      Savepoint savepoint = conn.setSavepoint();
      fails("23505", () -> run(conn, "INSERT INTO j (body) VALUES ('one')"));
      conn.rollback(savepoint);
      run(conn, "INSERT INTO j (body) VALUES ('two')");
      conn.commit();
      run(conn, "INSERT INTO j (body) VALUES ('three')");
      conn.rollback();
      check(one(conn, "SELECT count(*) FROM j").equals("2"), "transactions");
    }
    // One Query message for several statements, and texts for all parameters.
    try (Connection conn = connect(first, "preferQueryMode", "simple");
        PreparedStatement insert = conn.prepareStatement("INSERT INTO j (body) VALUES (?)")) {
      insert.setString(1, "it's simple");
      check(insert.executeUpdate() == 1, "simple");
      run(conn, "BEGIN; DELETE FROM j; ROLLBACK");
      check(one(conn, "SELECT count(*) FROM j").equals("3"), "simple");
    }
    System.out.println("transactions, savepoints, the simple protocol");
  }

  static void batches(String first) throws Exception {
    for (String rewrite : new String[] {"false", "true"}) {
      try (Connection conn = connect(first, "reWriteBatchedInserts", rewrite)) {
        conn.setAutoCommit(false);
        String sql = "INSERT INTO j (body) VALUES (?)";
        try (PreparedStatement insert = conn.prepareStatement(sql)) {
          for (int number = 0; number < 5000; number++) {
            insert.setString(1, "batch " + rewrite + number);
            insert.addBatch();
          }
          check(insert.executeBatch().length == 5000, "batch");
        }
        conn.commit();
        try (Statement statement = conn.createStatement()) {
          statement.addBatch("INSERT INTO j (body) VALUES ('batched')");
          statement.addBatch("SELECT 1/0");
          fails("22012", statement::executeBatch);
        }
        conn.rollback();
      }
    }
    try (Connection conn = connect(first);
        PreparedStatement insert =
            conn.prepareStatement(
                "INSERT INTO j (body) VALUES (?)", Statement.RETURN_GENERATED_KEYS)) {
      // The server prepares it from the fifth execution on, and then replies in binary.
      int last = 0;
      for (int number = 0; number < 20; number++) {
        insert.setString(1, "key " + number);
        insert.executeUpdate();
        try (ResultSet keys = insert.getGeneratedKeys()) {
          check(keys.next() && keys.getInt("id") > last, "generated keys");
          last = keys.getInt("id");
        }
      }
      String prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT%'";
      check(one(conn, prepared).equals("1"), "prepared by the server");
      check(one(conn, "SELECT count(*) FROM j").equals("10023"), "batches");
    }
    System.out.println("batches, generated keys, statements that the server prepares");
  }

  static void rows(String first) throws Exception {
    try (Connection conn = connect(first)) {
      conn.setAutoCommit(false);
      try (Statement statement = conn.createStatement()) {
        statement.setFetchSize(100);
        long sum = 0;
        try (ResultSet rows = statement.executeQuery("SELECT g FROM generate_series(1, 5000) g")) {
          while (rows.next()) sum += rows.getLong(1);
        }
        check(sum == 5000L * 5001 / 2, sum);
      }
      byte[] large = new byte[16 << 20];
      Arrays.fill(large, (byte) 1);
      try (PreparedStatement echo = conn.prepareStatement("SELECT ?::bytea, repeat('x', 9000000)")) {
        for (int number = 0; number < 7; number++) {
          echo.setBytes(1, large);
          try (ResultSet rows = echo.executeQuery()) {
            check(rows.next() && Arrays.equals(rows.getBytes(1), large), "a large value");
            check(rows.getString(2).length() == 9000000, "a long text");
          }
        }
      }
    }
    System.out.println("fetch size, large rows");
  }

  static void copies(String first) throws Exception {
    try (Connection conn = connect(first)) {
      CopyManager copies = conn.unwrap(PGConnection.class).getCopyAPI();
      StringBuilder lines = new StringBuilder();
      String rest = "y".repeat(100);
      for (int line = 0; line < 20_000; line++) lines.append("copied " + line + rest + "\n");
      long count = copies.copyIn("COPY j (body) FROM STDIN", new StringReader(lines.toString()));
      check(count == 20_000, count);
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      copies.copyOut("COPY j TO STDOUT (FORMAT binary)", out);
      check(out.size() > 2_000_000, out.size());
      byte[] wrong = "no number\tx\n".getBytes(StandardCharsets.UTF_8);
      fails("22P02", () -> copies.copyIn("COPY j (id, body) FROM STDIN", new ByteArrayInputStream(wrong)));
      copies.copyIn("COPY j (body) FROM STDIN").cancelCopy();
      check(one(conn, "SELECT count(*) FROM j").equals("30023"), "COPY");
    }
    System.out.println("COPY both ways");
  }

  static void notifications(String first) throws Exception {
    try (Connection listener = connect(first); Connection sender = connect(first)) {
      run(listener, "LISTEN news");
      run(sender, "NOTIFY news, 'hello'");
      var got = listener.unwrap(PGConnection.class).getNotifications(20_000);
      check(got != null && got.length == 1 && got[0].getParameter().equals("hello"), "NOTIFY");
    }
    System.out.println("LISTEN and NOTIFY");
  }

  static void cancels(String first) throws Exception {
    try (Connection conn = connect(first);
        Connection watch = connect(first);
        Statement statement = conn.createStatement()) {
      CompletableFuture<Void> cancel =
          CompletableFuture.runAsync(
              () -> {
                try {
                  String sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
                  while (one(watch, sleeping).equals("0")) Thread.sleep(10);
                  statement.cancel();
                } catch (Exception error) {
                  throw new AssertionError(error);
                }
              });
      fails("57014", () -> statement.execute("SELECT pg_sleep(600)"));
      cancel.get();
      statement.setQueryTimeout(1);
      fails("57014", () -> statement.execute("SELECT pg_sleep(600)"));
      check(one(conn, "SELECT 1").equals("1"), "after a cancel");
    }
    System.out.println("cancel");
  }

  static void tokenByOtherWays(String first) throws Exception {
    String options = "-c fence.token=" + first + " -c work_mem=5MB";
    try (Connection conn = connect("", "options", options)) {
      check(one(conn, "SHOW work_mem").equals("5MB"), "options");
    }
    // It sends SET of its own first, unless it is told that the server is new.
    String[] simple = {"user", "reader", "preferQueryMode", "simple", "assumeMinServerVersion", "9.4"};
    try (Connection conn = connect("any", simple)) {
      run(conn, "SET fence.token = '" + first + "'");
      check(one(conn, "SELECT current_user").equals("writer"), "SET");
    }
    System.out.println("options, SET");
  }

  static void handOver(String first, String second) throws Exception {
    try (Connection stale = connect(first); Connection idle = connect(first)) {
      check(idle.isValid(20), "valid before");
      stale.setAutoCommit(false);
      run(stale, "INSERT INTO j (body) VALUES ('stale')");
      try (Connection conn = connect(second)) {
        fails("FE412", stale::commit);
        fails("FE412", () -> one(idle, "SELECT 1"));
        fails("FE412", () -> connect(first));
        check(!stale.isValid(20) && !idle.isValid(20), "valid after");
        check(one(conn, "SELECT count(*) FROM j WHERE body = 'stale'").equals("0"), "stale");
      }
    }
    System.out.println("hand-over");
  }

  static void pool(String second, String third) throws Exception {
    HikariConfig config = new HikariConfig();
    // With a URL of its own the pool keeps the first password.
    PGSimpleDataSource source = new PGSimpleDataSource();
    source.setUrl(url);
    config.setDataSource(source);
    config.setUsername("app");
    config.setPassword(second);
    config.setMaximumPoolSize(4);
    config.setConnectionTimeout(20_000);
    try (HikariDataSource made = new HikariDataSource(config)) {
      for (int number = 0; number < 20; number++) insert(made, number);
      connect(third).close();
      made.getHikariConfigMXBean().setPassword(third);
      made.getHikariPoolMXBean().softEvictConnections();
      for (int number = 20; number < 40; number++) insert(made, number);
      try (Connection conn = made.getConnection()) {
        check(one(conn, "SELECT count(*) FROM j WHERE body LIKE 'pool %'").equals("40"), "pool");
      }
    }
    System.out.println("a pool whose credential follows the lease");
  }

  static void insert(HikariDataSource pool, int number) throws SQLException {
    try (Connection conn = pool.getConnection()) {
      run(conn, "INSERT INTO j (body) VALUES ('pool " + number + "')");
    }
  }
}
