// pgx and its pool at the PostgreSQL port, over a hand-over.
//
// Arguments: the port, and three credentials of one lock with rising tokens.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

var ctx = context.Background()

// Ends the program with an error.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, words ...any) {
	if !holds {
		panic(fmt.Sprint(words...))
	}
}

// Returns the SQLSTATE of an error.
func code(err error) string {
	var server *pgconn.PgError
	check(errors.As(err, &server), "no SQLSTATE: ", err)
	return server.Code
}

func server() string { return "host=127.0.0.1 dbname=shop user=app port=" + os.Args[1] }

func config(credential string) *pgx.ConnConfig {
	made, err := pgx.ParseConfig(server())
	must(err)
	made.Password = credential
	return made
}

func connectWith(made *pgx.ConnConfig) *pgx.Conn {
	conn, err := pgx.ConnectConfig(ctx, made)
	must(err)
	return conn
}

func connect(credential string) *pgx.Conn { return connectWith(config(credential)) }

type session interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func exec(conn session, sql string, args ...any) {
	_, err := conn.Exec(ctx, sql, args...)
	must(err)
}

func count(conn session, condition string) (number int) {
	must(conn.QueryRow(ctx, "SELECT count(*) FROM p WHERE "+condition).Scan(&number))
	return
}

func transactions(first string) {
	conn := connect(first)
	defer conn.Close(ctx)
	exec(conn, "CREATE TABLE p (id serial PRIMARY KEY, body text NOT NULL UNIQUE)")
	outer, err := conn.Begin(ctx)
	must(err)
	exec(outer, "INSERT INTO p (body) VALUES ('one')")
	inner, err := outer.Begin(ctx)
	must(err)
	_, err = inner.Exec(ctx, "INSERT INTO p (body) VALUES ('one')")
	check(code(err) == "23505", err)
	must(inner.Rollback(ctx))
	must(outer.Commit(ctx))
	// Each statement is prepared once and kept by the driver.
	last := 0
	for number := 0; number < 50; number++ {
		var id int
		must(conn.QueryRow(ctx, "INSERT INTO p (body) VALUES ($1) RETURNING id", fmt.Sprint("key ", number)).Scan(&id))
		check(id > last, id)
		last = id
	}
	// Several statements in one message.
	results, err := conn.PgConn().Exec(ctx, "BEGIN; DELETE FROM p; ROLLBACK; SELECT 1").ReadAll()
	check(err == nil && len(results) == 4, err)
	exec(conn, "INSERT INTO p (body) VALUES ($1)", pgx.QuerySimpleProtocol(true), "it's simple")
	batch := &pgx.Batch{}
	for number := 0; number < 1000; number++ {
		batch.Queue("INSERT INTO p (body) VALUES ($1)", fmt.Sprint("batch ", number))
	}
	must(conn.SendBatch(ctx, batch).Close())
	failing := &pgx.Batch{}
	failing.Queue("INSERT INTO p (body) VALUES ('batched')")
	failing.Queue("SELECT 1/0")
	err = conn.SendBatch(ctx, failing).Close()
	check(code(err) == "22012", err)
	check(count(conn, "true") == 1052, count(conn, "true"))
	var back []byte
	large := bytes.Repeat([]byte{0, 1}, 8<<20)
	must(conn.QueryRow(ctx, "SELECT $1::bytea", large).Scan(&back))
	check(bytes.Equal(back, large), "a large value")
	rows, err := conn.Query(ctx, "SELECT g FROM generate_series(1, 100000) g")
	must(err)
	check(rows.Next(), rows.Err())
	// It reads the rest.
	rows.Close()
	fmt.Println("transactions, savepoints, prepared statements, batches, large values")
}

func copies(first string) {
	conn := connect(first)
	defer conn.Close(ctx)
	rows := make([][]any, 20_000)
	for at := range rows {
		rows[at] = []any{fmt.Sprint("copied ", at, strings.Repeat("y", 100))}
	}
	copied, err := conn.CopyFrom(ctx, pgx.Identifier{"p"}, []string{"body"}, pgx.CopyFromRows(rows))
	check(err == nil && copied == 20_000, copied, err)
	var out bytes.Buffer
	_, err = conn.PgConn().CopyTo(ctx, &out, "COPY p TO STDOUT (FORMAT binary)")
	check(err == nil && out.Len() > 2_000_000, out.Len(), err)
	_, err = conn.PgConn().CopyFrom(ctx, strings.NewReader("no number\tx\n"), "COPY p (id, body) FROM STDIN")
	check(code(err) == "22P02", err)
	check(count(conn, "body LIKE 'copied%'") == 20_000, "COPY")
	fmt.Println("COPY both ways")
}

func notifications(first string) {
	listener, sender := connect(first), connect(first)
	defer listener.Close(ctx)
	defer sender.Close(ctx)
	exec(listener, "LISTEN news")
	exec(sender, "NOTIFY news, 'hello'")
	within, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	got, err := listener.WaitForNotification(within)
	must(err)
	check(got.Payload == "hello", got.Payload)
	fmt.Println("LISTEN and NOTIFY")
}

func cancels(first string) {
	conn, watch := connect(first), connect(first)
	defer conn.Close(ctx)
	defer watch.Close(ctx)
	awaitSleeper := func(sleepers int) {
		for found := -1; found != sleepers; time.Sleep(10 * time.Millisecond) {
			must(watch.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").Scan(&found))
		}
	}
	done := make(chan error)
	go func() {
		awaitSleeper(1)
		done <- conn.PgConn().CancelRequest(ctx)
	}()
	_, err := conn.Exec(ctx, "SELECT pg_sleep(600)")
	check(code(err) == "57014", err)
	must(<-done)
	exec(conn, "SELECT 1")
	// A context that ends closes the connection, and cancels what it left at the server.
	within, cancel := context.WithCancel(ctx)
	go func() {
		awaitSleeper(1)
		cancel()
	}()
	_, err = conn.Exec(within, "SELECT pg_sleep(600)")
	check(errors.Is(err, context.Canceled), err)
	awaitSleeper(0)
	fmt.Println("cancel")
}

func tokenByOtherWays(first string) {
	for _, setting := range [][2]string{{"fence.token", first}, {"options", "-c fence.token=" + first}} {
		made := config("")
		made.RuntimeParams[setting[0]] = setting[1]
		made.RuntimeParams["work_mem"] = "5MB"
		conn := connectWith(made)
		var found string
		must(conn.QueryRow(ctx, "SHOW work_mem").Scan(&found))
		check(found == "5MB", found)
		conn.Close(ctx)
	}
	made := config("any")
	made.User = "reader"
	conn := connectWith(made)
	defer conn.Close(ctx)
	// Without arguments it is a simple query.
	exec(conn, "SET fence.token = '"+first+"'")
	var user string
	must(conn.QueryRow(ctx, "SELECT current_user").Scan(&user))
	check(user == "writer", user)
	fmt.Println("parameters, options, SET")
}

func handOver(first, second string) {
	stale := connect(first)
	open, err := stale.Begin(ctx)
	must(err)
	exec(open, "INSERT INTO p (body) VALUES ('stale')")
	conn := connect(second)
	defer conn.Close(ctx)
	err = open.Commit(ctx)
	check(code(err) == "FE412", err)
	_, err = pgx.ConnectConfig(ctx, config(first))
	check(code(err) == "FE412", err)
	check(count(conn, "body = 'stale'") == 0, "stale")
	fmt.Println("hand-over")
}

func pool(second, third string) {
	var lease atomic.Value
	lease.Store(second)
	settings, err := pgxpool.ParseConfig(server() + " pool_min_conns=4 pool_max_conns=4")
	must(err)
	settings.BeforeConnect = func(_ context.Context, made *pgx.ConnConfig) error {
		made.Password = lease.Load().(string)
		return nil
	}
	// A connection that was fenced is not lent.
	settings.BeforeAcquire = func(ctx context.Context, conn *pgx.Conn) bool { return conn.Ping(ctx) == nil }
	made, err := pgxpool.ConnectConfig(ctx, settings)
	must(err)
	defer made.Close()
	insert := func(number int) {
		_, err := made.Exec(ctx, "INSERT INTO p (body) VALUES ($1)", fmt.Sprint("pool ", number))
		must(err)
	}
	for number := 0; number < 20; number++ {
		insert(number)
	}
	connect(third).Close(ctx)
	lease.Store(third)
	for number := 20; number < 40; number++ {
		insert(number)
	}
	var found int
	must(made.QueryRow(ctx, "SELECT count(*) FROM p WHERE body LIKE 'pool%'").Scan(&found))
	check(found == 40, found)
	fmt.Println("a pool whose credential follows the lease")
}

func main() {
	first, second, third := os.Args[2], os.Args[3], os.Args[4]
	transactions(first)
	copies(first)
	notifications(first)
	cancels(first)
	tokenByOtherWays(first)
	handOver(first, second)
	pool(second, third)
}
