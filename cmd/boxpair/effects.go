package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

const effectsName = "effects"

// maxResult is the size limit of a result in the ledger, in bytes.
const maxResult = 1 << 20

// ledger is the part of a store that the commands about effects need.
type ledger interface {
	ListEffects(ctx context.Context, f inbox.EffectFilter) ([]inbox.Effect, error)
	ChangeEffects(ctx context.Context, f inbox.EffectFilter, c inbox.EffectChange) ([]uuid.UUID, error)
}

// entries holds the settings of the commands about effects.
type entries struct {
	databases
	display
	change

	chosen inbox.EffectFilter
	ids    []idRange
	result string
}

// effectCommand returns a command about effects outside the database.
func effectCommand(verb, summary, details string, more func(e *entries, s *settings), run func(ctx context.Context, e *entries, p *process) (int, error)) command {
	return command{
		name: effectsName + " " + verb, summary: summary, details: details, group: changing,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			e := &entries{}
			e.define(s)
			if more != nil {
				more(e, s)
			}
			return func(ctx context.Context, p *process) (int, error) {
				if err := e.check(); err != nil {
					return exitFailed, err
				}
				return run(ctx, e, p)
			}
		},
	}
}

var effectCommands = []command{
	effectCommand("list", "show effects outside the database that wait for an operator",
		`Lists uncertain effects, which may have been carried out, and dead effects, which were not carried out or could not be finished.
--state, --effect and --id select others. Intents and results are not shown.

    boxpair effects list --inbox postgres://operator@payments/payments --consumer payments/charge`, selectEffects, listEffects),
	effectCommand("show", "show effects with all their attempts",
		`Shows the effects of the given --effect or --id, in any state, with their attempts and the changes by operators.

    boxpair effects show --inbox postgres://operator@payments/payments --effect 4b9d2a51-…`, selectEffects, showEffects),
	effectCommand("resolve", "record that an effect was carried out, with its result",
		`For an effect that the other side has carried out under the key --effect. A process of the consumer finishes the effect with --result,
and does not call the other side again. The effect must be uncertain, or dead without a result.

    boxpair effects resolve --inbox postgres://operator@payments/payments --effect 4b9d2a51-… --result '{"number":"42"}' --reason "provider's list"`,
		func(e *entries, s *settings) {
			s.text(&e.result, "result", "JSON", "the result as the service stores it, at most 1 MiB; null for no result. Required.")
			e.defineReason(s, answer+" Required.")
		}, resolveEffect),
	effectCommand("redrive", "try dead or uncertain effects again, under the same keys",
		`For effects that the other side has not carried out, or carries out once per key. A process of the consumer tries the effects of
--effect, --id or --state again. Prints the dispatch IDs of their messages, and names unchanged effects. --dry-run says how many effects
are selected, and changes nothing. The exit status is 1 if nothing was redriven.

    boxpair effects redrive --inbox postgres://operator@payments/payments --effect 4b9d2a51-… --reason "provider does not know it"`,
		(*entries).defineChange, redriveEffects),
	effectCommand("discard", "give up effects, with a reason",
		`Gives up the effects of --effect, --id or --state, except for effects that are being carried out, keeps the reason, and prints the
dispatch IDs of their messages. Unchanged effects are named. --dry-run says how many effects are selected, and changes nothing. The exit
status is 1 if nothing was discarded.

    boxpair effects discard --inbox postgres://operator@payments/payments --effect 4b9d2a51-… --reason "refunded by hand"`,
		(*entries).defineChange, discardEffects),
}

func (e *entries) defineChange(s *settings) {
	selectEffects(e, s)
	e.change.define(s, "")
	e.defineReason(s, answer+" Required without --dry-run.")
}

func (e *entries) define(s *settings) {
	e.databases.define(s, "", "the database of the effects' consumer.")
	s.add("effect", envOf("effect"), "UUID", "the idempotency key of an effect. May be given several times, except for resolve.", true, idsTo(&e.chosen.Keys))
	e.display.define(s)
}

// selectEffects declares the settings that select effects, except for their keys.
func selectEffects(e *entries, s *settings) {
	f := &e.chosen
	s.add("id", envOf("id"), "ID", "the dispatch ID of an effect's message, or its first eight digits or more. May be given several times.", true, rangesTo(&e.ids))
	s.add("state", envOf("state"), "STATE,…", "pending, doing, answered, uncertain, dead, done or discarded.", false, func(text string) error {
		for name := range strings.SplitSeq(text, ",") {
			state := inbox.EffectState(strings.TrimSpace(name))
			switch state {
			case inbox.EffectPending, inbox.EffectDoing, inbox.EffectAnswered, inbox.EffectUncertain,
				inbox.EffectDead, inbox.EffectDone, inbox.EffectDiscarded:
				f.States = append(f.States, state)
			default:
				return fmt.Errorf("unknown state %q", string(state))
			}
		}
		return nil
	})
	s.list[len(s.list)-1].values = []string{"pending", "doing", "answered", "uncertain", "dead", "done", "discarded"}
	s.text(&f.Consumer, "consumer", "NAME", "only effects of this consumer, such as payments/charge.")
	s.add("since", envOf("since"), "TIME", "only effects prepared since this time: 2026-01-31T12:00:00Z, or an age such as 24h.", false, moment(&f.Since))
	s.add("until", envOf("until"), "TIME", "only effects prepared before this time.", false, moment(&f.Until))
	s.count(&f.Limit, "limit", "the maximal number of effects. Defaults to 100 for lists, and to no limit for changes.")
}

// answer describes the reason for a change of effects.
const answer = "the reason, in at most 1 KiB: the answer of the other side."

func idsTo(list *[]uuid.UUID) func(text string) error {
	return func(text string) error {
		id, err := uuid.Parse(text)
		if err != nil {
			return errors.New("want a UUID")
		}
		*list = append(*list, id)
		return nil
	}
}

// check checks the settings against each other.
func (e *entries) check() error {
	if len(e.inboxes) != 1 {
		return fmt.Errorf("--inbox (or %s_URL): want exactly one, got %d", envOf("inbox"), len(e.inboxes))
	}
	return nil
}

// with calls do for the database, with the dispatch IDs of the selection found there.
func (e *entries) with(ctx context.Context, do func(s *operators) error) error {
	return e.each(ctx, false, func(s *operators) (err error) {
		if e.chosen.IDs, err = s.resolve(ctx, e.ids); err != nil {
			return err
		}
		return do(s)
	})
}

// named refuses a selection without keys, IDs and states, since an uncertain effect may have been
// carried out.
func (e *entries) named() error {
	if len(e.chosen.Keys)+len(e.ids)+len(e.chosen.States) == 0 {
		return errors.New("--effect: is missing: name keys, dispatch IDs (--id) or states (--state)")
	}
	return nil
}

func listEffects(ctx context.Context, e *entries, p *process) (int, error) {
	f := &e.chosen
	if len(f.States)+len(f.Keys)+len(e.ids) == 0 {
		f.States = []inbox.EffectState{inbox.EffectUncertain, inbox.EffectDead}
	}
	limit := f.Limit
	if limit == 0 {
		limit = shown
	}
	return outcome(e.with(ctx, func(s *operators) error {
		list, err := e.whole(ctx, s, max(counted, limit)+1, func(int, int) {})
		if err != nil {
			return err
		}
		n := min(limit, len(list))
		leftOut(p.stderr, n, len(list))
		return e.print(p, list[:n])
	}))
}

func showEffects(ctx context.Context, e *entries, p *process) (int, error) {
	if len(e.chosen.Keys)+len(e.ids) == 0 {
		return exitFailed, errors.New("--effect: is missing: name keys or dispatch IDs (--id)")
	}
	return outcome(e.with(ctx, func(s *operators) error {
		list, err := e.read(ctx, s, e.chosen)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return errors.New("there is no such effect")
		}
		for i := range list {
			if list[i].History, err = s.ofMessage(ctx, list[i].ID, list[i].Consumer, e.chosen.Limit); err != nil {
				return err
			}
		}
		return e.print(p, list)
	}))
}

func resolveEffect(ctx context.Context, e *entries, p *process) (int, error) {
	var errs []error
	if len(e.chosen.Keys) != 1 {
		errs = append(errs, fmt.Errorf("--effect: exactly one key is required, got %d", len(e.chosen.Keys)))
	}
	switch {
	case e.result == "":
		errs = append(errs, errors.New("--result: is missing"))
	case len(e.result) > maxResult:
		errs = append(errs, fmt.Errorf("--result: has %d bytes, more than %d", len(e.result), maxResult))
	case !json.Valid([]byte(e.result)):
		errs = append(errs, errors.New("--result: is not valid JSON"))
	}
	if err := errors.Join(append(errs, e.because())...); err != nil {
		return exitFailed, err
	}
	return outcome(e.with(ctx, func(s *operators) error {
		reason, err := e.attributed(s)
		if err != nil {
			return err
		}
		ids, err := s.effects.ChangeEffects(ctx, e.chosen, inbox.EffectChange{State: inbox.EffectAnswered, Result: []byte(e.result), Reason: reason})
		if err == nil && len(ids) == 0 {
			return e.unresolved(ctx, s)
		}
		return errors.Join(e.printIDs(p.stdout, ids), err)
	}))
}

// unresolved returns the reason why no effect was resolved.
func (e *entries) unresolved(ctx context.Context, s *operators) error {
	list, err := e.read(ctx, s, e.chosen)
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return errors.New("--effect: no effect has this key")
	case list[0].HasResult:
		return fmt.Errorf("--effect: the effect is %s, and its result is known: redrive or discard it", list[0].State)
	}
	return fmt.Errorf("--effect: the effect is %s: only uncertain effects, and dead effects without a result, can be resolved", list[0].State)
}

func redriveEffects(ctx context.Context, e *entries, p *process) (int, error) {
	return e.alter(ctx, p, "redrive", "redriven", inbox.EffectPending)
}

func discardEffects(ctx context.Context, e *entries, p *process) (int, error) {
	return e.alter(ctx, p, "discard", "discarded", inbox.EffectDiscarded)
}

// alter sets the selected effects to be tried again, or gives them up, in batches, and prints how many
// effects were changed.
func (e *entries) alter(ctx context.Context, p *process, do, done string, to inbox.EffectState) (int, error) {
	if err := errors.Join(e.named(), e.because()); err != nil {
		return exitFailed, err
	}
	changed := []uuid.UUID{}
	err := e.with(ctx, func(s *operators) error {
		all, err := e.whole(ctx, s, e.chosen.Limit, progressOf(p.stderr, s.name))
		if err != nil {
			return err
		}
		if e.dry {
			fmt.Fprintf(p.stderr, "%d selected; nothing was %s\n", len(all), done)
			for i := range all {
				changed = append(changed, all[i].ID)
			}
			return nil
		}
		reason, err := e.allowed(p, s, do, len(all))
		if err != nil {
			return err
		}
		changed, err = inBatches(ctx, all, progressOf(p.stderr, s.name), func(some []entry) ([]uuid.UUID, error) {
			f := e.chosen
			f.Keys, f.Limit = make([]uuid.UUID, len(some)), len(some)
			for i := range some {
				f.Keys[i] = some[i].Key
			}
			return s.effects.ChangeEffects(ctx, f, inbox.EffectChange{State: to, Reason: reason})
		})
		e.account(p.stderr, done, all, changed)
		return err
	})
	if err := errors.Join(e.printIDs(p.stdout, changed), err); err != nil {
		return exitFailed, err
	}
	if len(changed) == 0 {
		e.misspelt(ctx, p.stderr, "", e.chosen.Consumer)
	}
	if len(changed) == 0 && !e.dry {
		return exitFound, nil
	}
	return exitOK, nil
}

// account prints how many effects were changed, and names the unchanged effects.
func (e *entries) account(out io.Writer, done string, all []entry, ids []uuid.UUID) {
	fmt.Fprintf(out, "%d of %d selected were %s\n", len(ids), len(all), done)
	there, changed, named := make(map[uuid.UUID]bool), make(map[uuid.UUID]bool), 0
	for _, id := range ids {
		changed[id] = true
	}
	for i := range all {
		r := &all[i]
		there[r.Key] = true
		if !changed[r.ID] && named < unchanged {
			named++
			fmt.Fprintf(out, "%s stays %s\n", r.Key, r.State)
		}
	}
	for _, key := range e.chosen.Keys {
		if !there[key] {
			fmt.Fprintf(out, "%s is not selected here\n", key)
		}
	}
}

// entry is an effect as printed, without its intent and result.
type entry struct {
	Key        uuid.UUID  `json:"effect"`
	ID         uuid.UUID  `json:"id"`
	Seq        int64      `json:"number"`
	Consumer   string     `json:"consumer"`
	Topic      string     `json:"topic"`
	OrderKey   string     `json:"key"`
	State      string     `json:"state"`
	Uncertain  bool       `json:"may_be_carried_out"`
	HasResult  bool       `json:"has_result"`
	Attempts   int        `json:"attempts"`
	PreparedAt time.Time  `json:"prepared_at"`
	DueAt      *time.Time `json:"due_at,omitempty"`
	LeaseUntil *time.Time `json:"lease_until,omitempty"`
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	LastError  string     `json:"last_error"`
	Reason     string     `json:"reason,omitempty"`
	History    []history  `json:"history,omitempty"`
}

// outcome returns the exit status of a command that fails with err, or succeeds.
func outcome(err error) (int, error) {
	if err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// whole reads the selected effects page by page; at most limit effects unless limit is 0.
func (e *entries) whole(ctx context.Context, s *operators, limit int, report func(done, all int)) ([]entry, error) {
	f, all := e.chosen, []entry{}
	for limit == 0 || len(all) < limit {
		f.Limit = perPage
		if limit > 0 {
			f.Limit = min(perPage, limit-len(all))
		}
		page, err := e.read(ctx, s, f)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < f.Limit {
			break
		}
		f.After = page[len(page)-1].Seq
		report(len(all), 0)
	}
	return all, nil
}

// read reads the effects that f selects.
func (e *entries) read(ctx context.Context, s *operators, f inbox.EffectFilter) ([]entry, error) {
	found, err := s.effects.ListEffects(ctx, f)
	list := make([]entry, len(found))
	for i := range found {
		r := &found[i]
		list[i] = entry{
			r.Key, r.ID, r.Seq, r.Consumer, r.Topic, r.OrderKey, string(r.State), r.Uncertain, r.Result != nil, r.Attempts,
			r.PreparedAt, maybe(r.DueAt), maybe(r.LeaseUntil), maybe(r.EndedAt), r.LastError, r.Reason, nil,
		}
	}
	return list, err
}

func (e *entries) print(p *process, list []entry) error {
	if e.json() {
		return e.encode(p.stdout, map[string][]entry{"effects": list})
	}
	if len(list) == 0 {
		fmt.Fprintln(p.stderr, "nothing matches the filter")
		return nil
	}
	g := e.grid(p, column{head: "effect"}, column{head: "message", wide: true}, column{head: "state"}, column{head: "attempts", number: true, wide: true}, column{head: "since"},
		column{head: "topic", wide: true}, column{head: "key", wide: true}, column{head: "consumer", flexible: true}, column{head: "last error", flexible: true})
	for i := range list {
		r := &list[i]
		why := r.LastError
		if r.Reason != "" {
			why = "discarded: " + r.Reason
		}
		if r.State == string(inbox.EffectDead) && r.HasResult {
			why = strings.TrimSuffix("was carried out: "+why, ": ")
		}
		g.add(r.Key, r.ID, r.State, r.Attempts, e.when(r.PreparedAt), r.Topic, r.OrderKey, r.Consumer, why)
		for _, h := range r.History {
			g.add("", "", h.Outcome, "", e.when(h.At), "", "", "", h.Error)
		}
	}
	return g.print(p.stdout)
}
