package ops

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

// bulk is a change of all letters of a cause. Many letters take several requests: live traffic has most of
// the database's time. A form carries the bulk from one request to the next, so a browser that goes away
// leaves nothing behind but letters that are still dead.
//
// The letters are changed window by window, in the order in which the source lists them, and events of a
// window shard by shard. No letter is looked at twice: one that dies again at once must not be redriven for ever.
type bulk struct {
	Cause cause
	// All is the number of letters that the user has seen, or 0; Seen and Done count the letters that were
	// to be changed so far, and those that were.
	All, Seen, Done int64
	// Beyond tells that letters were left since their re-send horizon is over.
	Beyond bool

	// At is the place of the window in the source, and Newest the number of the last letter to change, or 0.
	At, Newest int64
	// Last is the last letter of the window that was changed, and Shard its shard; 0 before the first one. The
	// window ends with letter To, Next is the place behind it, and Down tells that numbers descend.
	Last, To, Next int64
	Shard          int
	Down           bool
	// End tells that all letters were seen.
	End bool
}

const (
	// window is how many letters are ordered by shard: some batches of each shard.
	window = 6400
	// bulkField is the field of a form with the bulk.
	bulkField = "bulk"
)

// waiting are the states of letters that wait for an operator.
var waiting = []string{string(inbox.Dead), string(inbox.TooOldState), string(inbox.AlteredState)}

// settling is the method of a source that changes letters: redrive or discard.
type settling func(box letters, ctx context.Context, s selected, reason string) ([]uuid.UUID, error)

func (h *Handler) redriveDead(ctx context.Context, r *request) (notice, error) {
	return h.settle(ctx, r, "dead/redrive", "redriven", string(inbox.Following), letters.redrive)
}

func (h *Handler) discardDead(ctx context.Context, r *request) (notice, error) {
	r.form.Del("force") // it is for a redrive
	return h.settle(ctx, r, "dead/discard", "discarded", string(inbox.Discarded), letters.discard)
}

// settle changes the letter that a form names, or all letters of its cause that wait for an operator. A
// letter in the state but is refused.
func (h *Handler) settle(ctx context.Context, r *request, name, done, but string, do settling) (notice, error) {
	box, err := h.letterBox(r)
	if err != nil {
		return notice{}, err
	}
	change := func(ids []uuid.UUID, state string) ([]uuid.UUID, error) {
		return do(box, ctx, selected{ids, state, r.form.Get("consumer"), r.form.Get("force") != ""}, r.noted)
	}
	b := &bulk{}
	if r.form.Has(bulkField) {
		err = b.decode(r.form.Get(bulkField))
	} else {
		err = b.begin(ctx, r, box, but, change)
	}
	if err != nil {
		return notice{}, err
	}
	// A request is cut off by Timeout: it ends in time, even if the last batch takes long.
	if err := b.work(ctx, box, time.Now().Add(h.cfg.Timeout*2/5), change); err != nil {
		return notice{}, fmt.Errorf("%s were %s, then: %w", b.progress(), done, err)
	}
	n := b.result(done)
	if !b.End {
		n = notice{Text: b.progress() + " done", next: b.form(r, name, done)}
	}
	return n, nil
}

// begin changes the letter that a form names, or else begins the change of its cause.
func (b *bulk) begin(ctx context.Context, r *request, box letters, but string, change func([]uuid.UUID, string) ([]uuid.UUID, error)) error {
	id, err := r.id("id")
	if err != nil {
		return err
	}
	first, err := box.byID(ctx, id, r.form.Get("consumer"))
	if err != nil {
		return err
	}
	all := r.form.Get("scope") == "cause"
	if first == nil || first.State == but || all && !slices.Contains(waiting, first.State) {
		return &failure{http.StatusConflict, "Nothing was changed: the state is another one by now. Somebody else may have changed it."}
	}
	if b.Cause = causeOf(first); !all {
		b.End = true
		return b.count(1, func() ([]uuid.UUID, error) { return change([]uuid.UUID{id}, first.State) })
	}
	b.All, _ = strconv.ParseInt(r.form.Get("all"), 10, 64) // only shown
	b.Newest, err = box.newest(ctx, &b.Cause)
	return err
}

// count makes a change of some letters, and counts them.
func (b *bulk) count(n int, change func() ([]uuid.UUID, error)) error {
	ids, err := change()
	b.Seen, b.Done = b.Seen+int64(n), b.Done+int64(len(ids))
	if errors.Is(err, producer.ErrBeyondHorizon) {
		b.Beyond, err = true, nil
	}
	return err
}

// work changes letters until all are changed or the time is over.
func (b *bulk) work(ctx context.Context, box letters, until time.Time, change func([]uuid.UUID, string) ([]uuid.UUID, error)) error {
	var paced *pace.Batches
	var apart bool
	for !b.End {
		list, err := b.window(ctx, box, until)
		if err != nil {
			return err
		}
		switch {
		case paced != nil:
		case b.Seen == 0 && b.Next == 0 && len(list) <= pace.PerBatch: // so few are changed at once
			paced = pace.Change()
		default:
			if paced, apart, err = box.pace(ctx); err != nil {
				return err
			}
		}
		if apart {
			slices.SortStableFunc(list, func(x, y letter) int { return x.shard - y.shard })
			list = slices.DeleteFunc(list, func(l letter) bool {
				return b.Last > 0 && (l.shard < b.Shard || l.shard == b.Shard && !b.behind(&l, b.Last))
			})
		}
		over, err := b.shards(ctx, list, apart, paced, until, change)
		if err != nil || over {
			return err
		}
		b.At, b.Last, b.End = b.Next, 0, b.Next == 0
		if !time.Now().Add(paced.Pause()).Before(until) {
			return nil
		}
	}
	return nil
}

// shards changes the letters of a window, in batches of one shard if they are apart. It tells whether the
// time was over before the last batch.
func (b *bulk) shards(ctx context.Context, list []letter, apart bool, paced *pace.Batches, until time.Time, change func([]uuid.UUID, string) ([]uuid.UUID, error)) (over bool, err error) {
	var last letter
	for len(list) > 0 {
		shard := list[0].shard
		n := slices.IndexFunc(list, func(l letter) bool { return apart && l.shard != shard })
		if n < 0 {
			n = len(list)
		}
		err := paced.Next(ctx, n, func(most int) (int, error) {
			ids := make([]uuid.UUID, most)
			for i := range ids {
				ids[i] = list[i].ID
			}
			last = list[most-1]
			list = list[most:]
			before := b.Done
			err := b.count(most, func() ([]uuid.UUID, error) { return change(ids, b.Cause.State) })
			return int(b.Done - before), err
		})
		if err != nil {
			return false, err
		}
		if len(list) > 0 && !time.Now().Add(paced.Pause()).Before(until) {
			if b.Last, b.Shard = last.seq, last.shard; !apart { // in the order of the source
				b.At, b.Last = last.seq, 0
			}
			return true, nil
		}
	}
	return false, nil
}

// window reads the letters of the window at At. A window that was begun ends where it ended before.
func (b *bulk) window(ctx context.Context, box letters, until time.Time) (list []letter, err error) {
	begun, first := b.Last > 0, true
	for at := b.At; ; {
		page, behind, err := box.next(ctx, &b.Cause, at, batch)
		if err != nil {
			return nil, err
		}
		for i := range page {
			l := &page[i]
			switch {
			case begun && b.behind(l, b.To):
				return list, nil
			case !begun:
				b.Down = !first && l.seq < b.To
				b.To, first = l.seq, false
			}
			if causeOf(l) == b.Cause && (b.Newest == 0 || l.seq <= b.Newest) {
				list = append(list, *l)
			}
		}
		full := len(list) >= window || len(list) > 0 && !time.Now().Before(until)
		if at = behind; at == 0 || !begun && full {
			if !begun {
				b.Next = at
			}
			return list, nil
		}
	}
}

// behind tells whether a letter comes behind the letter with a number.
func (b *bulk) behind(l *letter, number int64) bool {
	return b.Down && l.seq < number || !b.Down && l.seq > number
}

// progress says how many letters were changed so far.
func (b *bulk) progress() string {
	if b.All > b.Seen {
		return count(b.Done) + " of " + count(b.All)
	}
	return count(b.Done) + " of " + count(b.Seen)
}

// result says in words what became of the letters.
func (b *bulk) result(done string) notice {
	n := notice{Text: fmt.Sprintf("%s of %s were %s.", count(b.Done), count(b.Seen), done), Bad: b.Done < b.Seen}
	if b.Beyond {
		n.Text += " The re-send horizon of the others is over: consumers may have forgotten them. Only force sends them again."
	} else if n.Bad {
		n.Text += " The others were in a state that does not allow it."
	}
	return n
}

// workingPage shows how far a bulk is, and goes on with it.
type workingPage struct {
	Action, Done, Progress string
	Value, All             int64
	Topic                  string
	Back                   string
	Fields                 []fact
}

// form returns the page with the form that goes on.
func (b *bulk) form(r *request, name, done string) *workingPage {
	raw, _ := json.Marshal(b) // it has no type that could fail
	p := &workingPage{Action: "/" + name, Done: done, Progress: b.progress(), Value: b.Seen, All: max(b.All, b.Seen), Topic: b.Cause.Topic, Back: pageBefore(r.form)}
	for _, field := range []string{"kind", "source", "consumer", "reason", "force", "back"} {
		p.Fields = append(p.Fields, fact{Name: field, Value: r.form.Get(field)})
	}
	p.Fields = append(p.Fields, fact{Name: bulkField, Value: base64.RawURLEncoding.EncodeToString(raw)})
	return p
}

// decode reads the bulk of a form.
func (b *bulk) decode(field string) error {
	raw, err := base64.RawURLEncoding.DecodeString(field)
	if err != nil || json.Unmarshal(raw, b) != nil || !slices.Contains(waiting, b.Cause.State) {
		return &failure{http.StatusBadRequest, "Bulk: is damaged. Begin again at the dead letters."}
	}
	return nil
}
