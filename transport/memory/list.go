package memory

// list is a doubly linked list of deliveries. A delivery is in at most one list and refers to it.
// So removing a delivery needs no search, and a publish that was given up leaves no delivery behind
// in a queue without reader.
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

// popFront removes the first delivery and returns it, or nil.
func (l *list) popFront() *delivery {
	d := l.head
	if d != nil {
		d.unlink()
	}
	return d
}

// unlink removes d from its list.
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
