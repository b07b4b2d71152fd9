package amqp

import "context"

// watches tells when contexts of unconfirmed messages end, with one callback per
// context, however many messages share it.
type watches struct {
	byDone map[<-chan struct{}]*watch
	last   *watch // most messages share the context of the one before
}

type watch struct {
	ctx  context.Context
	refs int
	stop func() bool
}

// watch makes the judge look when ctx ends. Called with mu locked.
func (p *Publisher) watch(ctx context.Context) *watch {
	done := ctx.Done()
	if done == nil {
		return nil
	}
	w := p.watches.last
	if w == nil || w.ctx != ctx {
		w = p.watches.byDone[done]
	}
	if w == nil {
		w = &watch{ctx: ctx}
		w.stop = context.AfterFunc(ctx, func() {
			p.ctxEnded.Store(true)
			p.wakeJudge()
		})
		if p.watches.byDone == nil {
			p.watches.byDone = make(map[<-chan struct{}]*watch)
		}
		p.watches.byDone[done] = w
	}
	w.refs++
	p.watches.last = w
	return w
}

// unwatch undoes one call of watch. Called with mu locked.
func (p *Publisher) unwatch(w *watch) {
	if w == nil {
		return
	}
	if w.refs--; w.refs > 0 {
		return
	}
	w.stop()
	delete(p.watches.byDone, w.ctx.Done())
	if p.watches.last == w {
		p.watches.last = nil
	}
}
