package consumer

import "sync"

// gate lets many in together or one in alone. It is a sync.RWMutex on channels, so that
// tests on a synthetic clock can see who waits. The zero value is open.
//
// Neither side starves: who wants to be alone keeps newcomers out, and who
// waited for the one that was alone goes in before the next such.
type gate struct {
	mu      sync.Mutex
	ticket  int  // of the next one that wants to be alone
	turn    int  // whose turn it is to be
	inside  int  // together
	alone   bool // one is inside alone
	lonely  int  // waiting to be alone
	others  int  // waiting to be together
	invited int  // of others, those who go in before the next of lonely
	changed chan struct{}
}

// enter goes in together with others, and waits while one is alone.
func (g *gate) enter() {
	g.wait(&g.others, func() bool {
		if g.alone || g.lonely > 0 && g.invited == 0 {
			return false
		}
		g.invited = max(g.invited-1, 0)
		g.inside++
		return true
	})
}

// leave ends what enter began.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	g.tell()
}

// enterAlone waits until nobody is inside, and goes in alone, in the order of the
// calls.
func (g *gate) enterAlone() {
	ticket := -1
	g.wait(&g.lonely, func() bool {
		if ticket < 0 {
			ticket = g.ticket
			g.ticket++
		}
		if ticket != g.turn || g.alone || g.inside > 0 || g.invited > 0 {
			return false
		}
		g.turn++
		g.alone = true
		return true
	})
}

// leaveAlone ends what enterAlone began.
func (g *gate) leaveAlone() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone = false
	g.invited = g.others
	g.tell()
}

// wait counts the caller among waiting until taken succeeds. taken is called
// under the lock.
func (g *gate) wait(waiting *int, taken func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if taken() {
		return
	}
	*waiting++
	for {
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		<-changed
		g.mu.Lock()
		if taken() {
			*waiting--
			g.tell() // one fewer in the way of the others
			return
		}
	}
}

// tell wakes who waits. The caller holds mu.
func (g *gate) tell() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}
