package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// session is an open transaction.
type session struct {
	pid                      int
	role, application, state string
	age                      time.Duration
	blockers                 []int         // the pids of the sessions that block the transaction
	waiting                  []*session    // the sessions that wait for its end, also behind one another
	waits                    time.Duration // how long a waiting statement runs
	longest                  time.Duration // the longest of the waits for its end
}

// idle is how long an idle transaction may be open while sessions wait for its end. No single wait is
// long: a statement of a relay or of a consumer soon gives up, and begins anew.
const idle = 10 * time.Second

// sessions looks for transactions that keep vacuum from removing rows, and relays from passing by:
// a relay reads again where an open transaction may still commit events. A session that waits for a
// lock is no finding of its own, and counts at the session that blocks it. A wait delays events sooner
// than a long transaction does.
func (r *run) sessions(ctx context.Context, t *tables) {
	const hidden = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usesysid IS NOT NULL
		AND NOT pg_has_role(current_user, usesysid, 'USAGE') AND NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')`
	var unseen int
	if err := t.Pool.QueryRow(ctx, hidden).Scan(&unseen); err != nil {
		r.failed(OldTransaction, t.Name, err)
		return
	}
	if unseen > 0 {
		r.add(OldTransaction, NotChecked, t.Name, fmt.Sprintf("the role does not see the transactions of %d sessions", unseen), "GRANT pg_read_all_stats TO the role of the monitor")
	}
	list, err := query(ctx, t, func(row scanner, s *session) error {
		var age, waits int64
		err := row.Scan(&s.pid, &s.role, &s.application, &s.state, &age, &waits, &s.blockers)
		s.age, s.waits = time.Duration(age)*time.Microsecond, time.Duration(waits)*time.Microsecond
		return err
	}, `SELECT pid, coalesce(usename, ''), application_name, coalesce(state, ''), (extract(epoch FROM clock_timestamp() - xact_start) * 1000000)::bigint,
			(extract(epoch FROM clock_timestamp() - coalesce(query_start, xact_start)) * 1000000)::bigint,
			CASE WHEN wait_event_type = 'Lock' THEN pg_blocking_pids(pid) ELSE '{}' END
		FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
			AND xact_start IS NOT NULL ORDER BY xact_start`)
	if err != nil {
		r.failed(OldTransaction, t.Name, err)
	}
	for _, s := range holders(list) {
		if !s.stalls(&r.cfg) {
			continue
		}
		r.add(OldTransaction, Stalls, t.Name, s.problem(), fmt.Sprintf("SELECT pg_terminate_backend(%d);", s.pid))
	}
}

// problem says who waits for the end of the transaction, before anything else: vacuum is late, too, but
// a wait stops work.
func (s *session) problem() string {
	details := []string{s.state, fmt.Sprintf("pid %d", s.pid)}
	if s.application != "" {
		details = slices.Insert(details, 0, s.application)
	}
	holder := fmt.Sprintf("a transaction of role %s (%s)", s.role, strings.Join(details, ", "))
	age := s.age.Round(time.Second)
	timeout := "idle_in_transaction_session_timeout"
	if s.state == "active" {
		timeout = "statement_timeout"
	}
	var text string
	switch n := len(s.waiting); n {
	case 0:
		text = fmt.Sprintf("%s is open for %v: what it locks waits", holder, age)
	case 1:
		text = fmt.Sprintf("1 session (%s) waits for %s, open for %v", whose(s.waiting), holder, age)
	default:
		text = fmt.Sprintf("%d sessions (%s) wait for %s, open for %v", n, whose(s.waiting), holder, age)
	}
	return text + ", and vacuum removes no delivered row. Ending it rolls its uncommitted work back; " + timeout + " for the role " + s.role + " prevents the next one"
}

// whose returns the roles and applications of sessions.
func whose(list []*session) string {
	var order []string
	number := make(map[string]int)
	for _, s := range list {
		name := "role " + s.role
		if s.application != "" {
			name += " as " + s.application
		}
		if number[name]++; number[name] == 1 {
			order = append(order, name)
		}
	}
	for i, name := range order {
		if n := number[name]; n > 1 {
			order[i] = fmt.Sprintf("%d of %s", n, name)
		}
	}
	if more := len(order) - mostNamed; more > 0 {
		order = append(order[:mostNamed], fmt.Sprintf("%d others", more))
	}
	return strings.Join(order, ", ")
}

// stalls tells whether the transaction is open for too long, or holds up other sessions.
func (s *session) stalls(cfg *Config) bool {
	idles := s.state != "active" && len(s.waiting) > 0 && s.age > idle
	return s.age > cfg.TransactionAge || s.longest > cfg.EventAge || idles
}

// holders returns the sessions that wait for no other session of the list, with the sessions that wait
// for them and the longest wait.
func holders(list []session) []*session {
	at := make(map[int]*session, len(list))
	for i := range list {
		at[list[i].pid] = &list[i]
	}
	blocked := func(s *session) bool {
		return slices.ContainsFunc(s.blockers, func(pid int) bool { return at[pid] != nil && at[pid] != s })
	}
	var roots []*session
	for i := range list {
		s := &list[i]
		if !blocked(s) {
			roots = append(roots, s)
			continue
		}
		seen := map[*session]bool{s: true}
		for ahead := []*session{s}; len(ahead) > 0; ahead = ahead[1:] {
			for _, pid := range ahead[0].blockers {
				b := at[pid]
				if b == nil || seen[b] {
					continue
				}
				seen[b], ahead = true, append(ahead, b)
				if !blocked(b) {
					b.waiting = append(b.waiting, s)
					b.longest = max(b.longest, s.waits)
				}
			}
		}
	}
	return roots
}

// prepared looks for prepared transactions without an end.
func (r *run) prepared(ctx context.Context, t *tables) {
	type prepared struct {
		id  string
		age int64
	}
	list, err := query(ctx, t, func(row scanner, p *prepared) error { return row.Scan(&p.id, &p.age) }, `
		SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::bigint FROM pg_prepared_xacts
		WHERE database = current_database() AND prepared < clock_timestamp() - $1::bigint * interval '1 microsecond' ORDER BY prepared`, r.cfg.TransactionAge.Microseconds())
	if err != nil {
		r.failed(PreparedTransaction, t.Name, err)
	}
	for _, p := range list {
		r.add(PreparedTransaction, Stalls, t.Name, fmt.Sprintf("the transaction %s is prepared for %v, and keeps its locks and all deleted rows", p.id, time.Duration(p.age)*time.Second),
			"COMMIT PREPARED "+literal(p.id)+" or ROLLBACK PREPARED "+literal(p.id)+", as its coordinator says")
	}
}

// slot is a replication slot, with the write-ahead log that it holds.
type slot struct {
	name, state string
	active      bool
	held        int64
}

// heldTransactions is how many transactions old the snapshot of a standby may be.
const heldTransactions = 100_000

// slots looks for replication slots that keep rows and log.
func (r *run) slots(ctx context.Context, s *server) {
	list, err := query(ctx, s.via, func(row scanner, l *slot) error { return row.Scan(&l.name, &l.state, &l.active, &l.held) }, `
		SELECT slot_name, coalesce(wal_status, ''), active,
			coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0)::bigint
		FROM pg_replication_slots WHERE NOT temporary AND (database IS NULL OR database = current_database()) ORDER BY slot_name`)
	if err != nil {
		r.failed(ReplicationSlot, s.name, err)
	}
	for _, l := range list {
		drop := "SELECT pg_drop_replication_slot(" + literal(l.name) + ")"
		switch {
		case l.state == "lost":
			r.add(ReplicationSlot, Loses, s.name, "the replication slot "+l.name+" has lost its log: its reader misses changes", "copy its reader anew, and "+drop)
		case !l.active:
			r.add(ReplicationSlot, Stalls, s.name, fmt.Sprintf("nobody reads the replication slot %s, which holds %d MiB of the log and keeps rows: the disk fills", l.name, l.held>>20), "start its reader, or "+drop)
		case l.held > int64(r.cfg.SlotBytes):
			r.add(ReplicationSlot, Stalls, s.name, fmt.Sprintf("the reader of the replication slot %s is %d MiB behind: the log is kept for it", l.name, l.held>>20), "look at its reader; bound the log by max_slot_wal_keep_size")
		}
	}
}

// standbys looks at the standbys of the server, and at the rows that their queries keep here.
func (r *run) standbys(ctx context.Context, s *server) {
	type standby struct {
		name string
		age  int64
	}
	var unseen, copies int
	err := s.via.Pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE state IS NULL), count(*) FILTER (WHERE state = 'streaming') FROM pg_stat_replication`).Scan(&unseen, &copies)
	if err != nil {
		r.failed(StandbyFeedback, s.name, err)
		return
	}
	if unseen > 0 {
		r.add(StandbyFeedback, NotChecked, s.name, fmt.Sprintf("the role does not see what %d readers of the log keep", unseen), "GRANT pg_read_all_stats TO the role of the monitor")
	}
	if copies > 0 && s.settings["synchronous_standby_names"] == "" {
		r.add(Durability, Advice, s.name, "no standby is synchronous: a fail-over loses the last commits, though events of them may be sent", "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf()")
	}
	behind, err := query(ctx, s.via, func(row scanner, b *standby) error { return row.Scan(&b.name, &b.age) }, `
		SELECT coalesce(nullif(application_name, ''), host(client_addr), pid::text), age(backend_xmin) FROM pg_stat_replication
		WHERE age(backend_xmin) > $1 ORDER BY 1`, heldTransactions)
	if err != nil {
		r.failed(StandbyFeedback, s.name, err)
	}
	for _, b := range behind {
		r.add(StandbyFeedback, Stalls, s.name, fmt.Sprintf("a query on the standby %s keeps all rows that were deleted since %d transactions (hot_standby_feedback)", strings.TrimSpace(b.name), b.age),
			"end the query on the standby, or bound it there: ALTER SYSTEM SET statement_timeout")
	}
}
