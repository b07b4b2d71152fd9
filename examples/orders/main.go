// Command orders is a saga, the main use of this library: three services, each with a database of
// its own, process customers' orders.
//
//	orders:    places an order ─► order.placed
//	inventory: reserves stock  ─► stock.reserved or stock.refused
//	payment:   captures money  ─► payment.captured or payment.declined
//	orders:    confirms or cancels ─► order.confirmed or order.cancelled
//	inventory: ships, or puts the stock back that a declined payment had reserved
//
// The saga has compensation, and every step is a dispatch: an event is written in the transaction
// of the change that it announces, and applied in the transaction of the change that it causes.
// Duplicates are injected on the wire. With -chaos the services and relays are child processes,
// which are killed with SIGKILL at random and started again. In the end an audit compares the
// committed events with the applied ones.
//
// Without settings the program runs on SQLite files and in one process. With DATABASE_URL and
// AMQP_URL it runs on PostgreSQL (a schema for each service) and RabbitMQ.
//
// The exit status is 0 if the audit passed, 1 if the audit failed, 2 if the program could not run.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// options are the program's settings.
type options struct {
	Orders      int
	Concurrency int
	Duplicates  float64
	Chaos       bool
	Kills       int
	JSON        bool
	Dir         string
	Timeout     time.Duration
	DatabaseURL string `json:"-"` // reaches child processes by the environment, with its password
	AMQPURL     string `json:"-"`
	Verbose     bool
}

// onPostgres tells whether PostgreSQL and RabbitMQ are used instead of the embedded default.
func (o *options) onPostgres() bool { return o.DatabaseURL != "" }

const (
	defaultOrders      = 2_000
	defaultChaosOrders = 10_000
	defaultKills       = 20
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "orders:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	var passed bool
	if opts.onPostgres() {
		passed, err = start[pgx.Tx](ctx, opts, openPostgres, stdout, stderr)
	} else {
		passed, err = start[*sql.Tx](ctx, opts, openSQLite, stdout, stderr)
	}
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "orders:", err)
		return 2
	case !passed:
		return 1
	}
	return 0
}

// start runs this process: one role of the system, or the whole system with the report.
func start[TX any](ctx context.Context, opts options, open opener[TX], stdout, stderr io.Writer) (bool, error) {
	logger := slog.New(slog.DiscardHandler)
	if opts.Verbose {
		logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if role := os.Getenv(roleEnv); role != "" {
		return true, runChild(ctx, opts, open, role, logger)
	}
	return runParent(ctx, opts, open, stdout, logger)
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.Orders, "orders", 0, fmt.Sprintf("number of orders to place (default %d, with -chaos %d)", defaultOrders, defaultChaosOrders))
	flags.IntVar(&o.Concurrency, "concurrency", 2*runtime.GOMAXPROCS(0), "orders placed at the same time")
	flags.Float64Var(&o.Duplicates, "duplicates", 0.2, "share of messages sent twice on the wire, from 0 to 1")
	flags.BoolVar(&o.Chaos, "chaos", false, "run services and relays as child processes and kill them at random")
	flags.IntVar(&o.Kills, "kills", defaultKills, "kills with -chaos")
	flags.BoolVar(&o.JSON, "json", false, "print one JSON object as the last line instead of the audit table")
	flags.StringVar(&o.Dir, "dir", "", "folder of the SQLite files (default: a temporary one, removed in the end)")
	flags.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "give up after this time")
	flags.BoolVar(&o.Verbose, "v", false, "log warnings and errors of the library to standard error")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.Orders == 0 {
		o.Orders = defaultOrders
		if o.Chaos {
			o.Orders = defaultChaosOrders
		}
	}
	if !o.Chaos {
		o.Kills = 0
	}
	o.DatabaseURL, o.AMQPURL = os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL")
	return o, o.validate(flags.NArg())
}

func (o *options) validate(rest int) error {
	var errs []error
	if rest > 0 {
		errs = append(errs, errors.New("there are no arguments besides flags"))
	}
	if o.Orders < 1 {
		errs = append(errs, fmt.Errorf("-orders: %d is not positive", o.Orders))
	}
	if o.Concurrency < 1 {
		errs = append(errs, fmt.Errorf("-concurrency: %d is not positive", o.Concurrency))
	}
	if o.Duplicates < 0 || o.Duplicates > 1 {
		errs = append(errs, fmt.Errorf("-duplicates: %v is not between 0 and 1", o.Duplicates))
	}
	if o.Kills < 0 {
		errs = append(errs, fmt.Errorf("-kills: %d is negative", o.Kills))
	}
	if (o.DatabaseURL == "") != (o.AMQPURL == "") {
		errs = append(errs, errors.New("set both DATABASE_URL and AMQP_URL, or neither"))
	}
	return errors.Join(errs...)
}
