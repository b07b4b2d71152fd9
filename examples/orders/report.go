package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// passed and failed are the verdicts of an audit.
const (
	passed = "passed"
	failed = "failed"
)

// report is the result of a run: the findings in the databases, and the counts of the processes.
type report struct {
	findings
	counts
	Backend string
	Kills   int
	Seconds float64
	Orders  int
	Audit   string
}

// judge decides whether the audit passed. A run that should have injected duplicates, and injected
// none, has proved nothing, and fails.
func (r *report) judge(opts options) {
	r.Orders = opts.Orders
	r.Audit = passed
	wrong := r.NotFinal != 0 || r.Stock != 0 || r.Money != 0 || r.Lost != 0 || r.Phantoms != 0 || r.Repeated != 0 || r.Violations != 0
	idle := r.Kills < opts.Kills || opts.Duplicates > 0 && opts.Orders >= 100 && (r.Injected == 0 || r.Suppressed == 0)
	if wrong || idle {
		r.Audit = failed
	}
}

func (r *report) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return r.printJSON(out)
	}
	line := func(ok bool, what, format string, args ...any) {
		mark := "ok  "
		if !ok {
			mark = "FAIL"
		}
		fmt.Fprintf(out, "  %s  %-42s %s\n", mark, what, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(out, "\naudit of %s after %.1f s\n", r.Backend, r.Seconds)
	line(r.NotFinal == 0, "every order is confirmed or cancelled", "%d of %d", int64(r.Orders)-r.NotFinal, r.Orders)
	line(r.Stock == 0, "stock is conserved", "%d missing", r.Stock)
	line(r.Money == 0, "money is conserved", "%d missing", r.Money)
	line(r.Lost == 0, "committed = applied + parked", "%d = %d + %d, from %d events", r.Due, r.Applied, r.Parked, r.Events)
	line(r.Repeated == 0, "one effect per dispatch ID", "%d repeated", r.Repeated)
	line(r.Phantoms == 0, "nothing applied that was not committed", "%d", r.Phantoms)
	line(r.Violations == 0, "each customer's events kept their order", "%d out of order", r.Violations)
	fmt.Fprintf(out, "        duplicates: %d injected on the wire, %d suppressed (with those that kills and retries made)\n", r.Injected, r.Suppressed)
	if r.Kills > 0 {
		fmt.Fprintf(out, "        processes killed with SIGKILL: %d\n", r.Kills)
	}
	_, err := fmt.Fprintf(out, "audit %s\n", r.Audit)
	return err
}

func (r *report) printJSON(out io.Writer) error {
	return json.NewEncoder(out).Encode(struct {
		Backend    string  `json:"backend"`
		Orders     int     `json:"orders"`
		Events     int64   `json:"events"`
		Due        int64   `json:"due"`
		Applied    int64   `json:"applied"`
		Parked     int64   `json:"parked"`
		Injected   int64   `json:"duplicates_injected"`
		Suppressed int64   `json:"duplicates_suppressed"`
		Kills      int     `json:"kills"`
		Lost       int64   `json:"lost"`
		Repeated   int64   `json:"duplicate_effects"`
		Violations int64   `json:"order_violations"`
		Phantoms   int64   `json:"phantoms"`
		Seconds    float64 `json:"seconds"`
		Audit      string  `json:"audit"`
	}{
		r.Backend, r.Orders, r.Events, r.Due, r.Applied, r.Parked, r.Injected, r.Suppressed,
		r.Kills, r.Lost, r.Repeated, r.Violations, r.Phantoms, r.Seconds, r.Audit,
	})
}
