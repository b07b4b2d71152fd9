package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// server is a PostgreSQL server.
type server struct {
	name    string        // of via
	via     *tables       // the first database that reached the server
	started time.Time     // identifies the server
	ahead   time.Duration // of this machine's clock
	unsure  time.Duration // by how much ahead may be wrong

	standby  bool
	capacity int // connections of ordinary roles
	used     int
	pools    map[*pgxpool.Pool]int // Database.Connections of services, by pool
	settings map[string]string
	bloated  bool // a table has many deleted rows
}

// settings are the names of the settings that [server.settings] holds.
var settings = []string{
	"fsync", "full_page_writes", "synchronous_commit", "autovacuum", "track_counts", "default_transaction_isolation",
	"default_transaction_read_only", "max_connections", "synchronous_standby_names",
}

// readServer reads the clock, the connections and the settings of a server.
func readServer(ctx context.Context, d *Database) (*server, error) {
	s := &server{name: d.Name, via: &tables{Database: *d}, pools: make(map[*pgxpool.Pool]int), settings: make(map[string]string)}
	conn, err := d.Pool.Acquire(ctx) // first, so that the clock is read without this wait
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	const samples = 3
	for range samples {
		var there time.Time
		before := time.Now()
		if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&there); err != nil {
			return nil, err
		}
		trip := time.Since(before)
		if s.unsure == 0 || trip/2 < s.unsure {
			s.ahead, s.unsure = there.Sub(before.Add(trip/2)), max(1, trip/2)
		}
	}
	err = conn.QueryRow(ctx, `
		SELECT pg_postmaster_start_time(), pg_is_in_recovery(),
			current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				- coalesce(current_setting('reserved_connections', true)::int, 0),
			(SELECT count(*) FROM pg_stat_activity WHERE usesysid IS NOT NULL AND datid IS NOT NULL)`).
		Scan(&s.started, &s.standby, &s.capacity, &s.used)
	if err != nil {
		return nil, err
	}
	for _, name := range settings {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return nil, err
		}
		s.settings[name] = value
	}
	return s, nil
}

// clocks compares the clocks of servers with this machine's, and with each other.
func (r *run) clocks(servers []*server) {
	const remedy = "run NTP on both: chronyc tracking"
	for i, s := range servers {
		if differ(s.ahead, s.unsure, r.cfg.ClockSkew) {
			r.add(Clock, Stalls, s.name, fmt.Sprintf("the clock of the database is %s this machine's: leases and due times follow the one, stamps and deadlines the other", ahead(s.ahead)), remedy)
		}
		for _, o := range servers[:i] {
			if differ(s.ahead-o.ahead, s.unsure+o.unsure, r.cfg.ClockSkew) {
				r.add(Clock, Loses, s.name, fmt.Sprintf("the clock of the database is %s that of %s: a consumer may take new messages for too old, or forget too late", ahead(s.ahead-o.ahead), o.name), remedy)
			}
		}
	}
}

func differ(by, unsure, most time.Duration) bool { return by.Abs()-unsure > most }

func ahead(by time.Duration) string {
	if by < 0 {
		return fmt.Sprintf("%v behind", -by.Round(time.Millisecond))
	}
	return fmt.Sprintf("%v ahead of", by.Round(time.Millisecond))
}

// server judges the settings of a server.
func (r *run) server(ctx context.Context, s *server) {
	if s.standby || s.settings["default_transaction_read_only"] == "on" {
		r.add(ReadOnly, Stalls, s.name, "the server takes no writes: it is a standby, or default_transaction_read_only is on",
			"connect to the primary (target_session_attrs=read-write), or ALTER SYSTEM RESET default_transaction_read_only")
	}
	pools := 0
	for _, n := range s.pools {
		pools += n
	}
	if pools > s.capacity {
		r.add(Connections, Stalls, s.name, fmt.Sprintf("services open up to %d connections, and %d are left of max_connections %s", pools, s.capacity, s.settings["max_connections"]),
			fmt.Sprintf("ALTER SYSTEM SET max_connections = %d and restart, smaller pools, or PgBouncer", pools*5/4))
	} else if s.used*10 >= s.capacity*9 {
		r.add(Connections, Stalls, s.name, fmt.Sprintf("%d of %d connections are in use", s.used, s.capacity),
			fmt.Sprintf("ALTER SYSTEM SET max_connections = %d and restart, smaller pools, or PgBouncer", s.capacity*2))
	}
	for _, name := range []string{"fsync", "full_page_writes"} {
		if s.settings[name] == "off" {
			r.add(Durability, Loses, s.name, name+" is off: a crash of the machine loses or damages committed events",
				"ALTER SYSTEM SET "+name+" = on; SELECT pg_reload_conf()")
		}
	}
	r.setting(s.name, "", "synchronous_commit", s.settings["synchronous_commit"])
	r.setting(s.name, "", "default_transaction_isolation", s.settings["default_transaction_isolation"])
	r.slots(ctx, s)
	r.standbys(ctx, s)
}

// vacuum judges the settings of vacuum, after the tables of the server have been read: few deleted rows
// delay nothing. Without track_counts their number is not known.
func (r *run) vacuum(s *server) {
	for _, name := range []string{"autovacuum", "track_counts"} {
		if s.settings[name] == "off" {
			r.add(Autovacuum, unvacuumed(s.bloated || name == "track_counts"), s.name, name+" is off: delivered rows stay, and reads of the queue step over all of them",
				"ALTER SYSTEM SET "+name+" = on; SELECT pg_reload_conf()")
		}
	}
}

// unvacuumed returns the severity of a missing vacuum of tables that have many deleted rows, or few.
func unvacuumed(many bool) Severity {
	if many {
		return Stalls
	}
	return Advice
}

// setting judges a setting of the server, or of a role or database; at names the role or database as
// in ALTER ROLE or ALTER DATABASE.
func (r *run) setting(subject, at, name, value string) {
	remedy := fmt.Sprintf("ALTER SYSTEM RESET %s; SELECT pg_reload_conf()", name)
	if at != "" {
		remedy = fmt.Sprintf("ALTER %s RESET %s", at, name)
		at = " by ALTER " + at
	}
	switch {
	case name == "synchronous_commit" && value == "off":
		r.add(Durability, Loses, subject, "synchronous_commit is off"+at+": a crash loses the last commits, though events of them may be sent", remedy)
	case name == "default_transaction_isolation" && value != "read committed":
		r.add(Isolation, Advice, subject, fmt.Sprintf("default_transaction_isolation is %s%s: statements of relays and operators conflict, and are repeated", value, at), remedy)
	case name == "default_transaction_read_only" && value == "on":
		r.add(ReadOnly, Stalls, subject, "default_transaction_read_only is on"+at, remedy)
	}
}
