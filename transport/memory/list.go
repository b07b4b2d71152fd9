package memory

// list is a doubly linked list of deliveries. A delivery is in at most one list
// and knows which, so it is found and taken out without a search, and nothing
// given up stays behind in a queue that nobody reads.
type list struct {
	head, tail *delivery
}

func (l *list) pushBack(d *delivery) {
	d.in, d.prev, d.next = l, l.tail, nil
	if l.tail == nil {
		l.head = d
	} else {
		l.tail.next = d
	}
	l.tail = d
}

func (l *list) pushFront(d *delivery) {
	d.in, d.prev, d.next = l, nil, l.head
	if l.head == nil {
		l.tail = d
	} else {
		l.head.prev = d
	}
	l.head = d
}

// popFront takes the first delivery out and returns it, or nil.
func (l *list) popFront() *delivery {
	d := l.head
	if d != nil {
		d.unlink()
	}
	return d
}

// unlink takes d out of its list.
func (d *delivery) unlink() {
	if d.prev == nil {
		d.in.head = d.next
	} else {
		d.prev.next = d.next
	}
	if d.next == nil {
		d.in.tail = d.prev
	} else {
		d.next.prev = d.prev
	}
	d.in, d.prev, d.next = nil, nil, nil
}
