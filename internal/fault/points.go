package fault

import "errors"

// Point is a place between two steps.
type Point string

// The producer's points.
const (
	P1 Point = "P1" // before BEGIN
	P2 Point = "P2" // after the business write, before the event's
	P3 Point = "P3" // after the event's write, before COMMIT
	P4 Point = "P4" // committed, and the producer does not know; an error makes the outcome unknown
	P5 Point = "P5" // committed, relays not told
)

// The relay's points.
const (
	R1  Point = "R1"  // before a lease is asked for
	R2  Point = "R2"  // leased, nothing sent; an error loses the answer
	R3  Point = "R3"  // before one message of a batch is published
	R4  Point = "R4"  // one message is published, not confirmed
	R5  Point = "R5"  // the outcome of one message is known, and not yet taken note of
	R6  Point = "R6"  // confirmed, before the mark
	R7  Point = "R7"  // the mark is sent, its answer not read
	R8  Point = "R8"  // the mark is committed; an error loses the answer
	R9  Point = "R9"  // after the mark
	R10 Point = "R10" // before a statement that parks, or that changes what is parked
	R11 Point = "R11" // it is committed; an error loses the answer
)

// The points of the RabbitMQ transport.
const (
	B1 Point = "B1" // a message is written to the broker
	B2 Point = "B2" // its confirm has arrived; an error loses it
	B3 Point = "B3" // the broker has returned a message
	B4 Point = "B4" // the broker has blocked the connection
	B5 Point = "B5" // a message was delivered and handed out, not acknowledged
)

// The consumer's points.
const (
	C1  Point = "C1"  // a message has come in
	C2  Point = "C2"  // its dispatch ID is read
	C3  Point = "C3"  // the window was asked and does not know it
	C4  Point = "C4"  // it is claimed
	C5  Point = "C5"  // its handler is about to be called, with its writer
	C6  Point = "C6"  // the effect is written, before COMMIT
	C7  Point = "C7"  // committed; an error makes the outcome unknown
	C8  Point = "C8"  // committed, the window not yet filled
	C9  Point = "C9"  // the window is filled, the message not acknowledged
	C10 Point = "C10" // before the acknowledgement is written; an error loses it
	C11 Point = "C11" // before a message is parked
	C12 Point = "C12" // it is parked; an error loses the answer
)

// The points of an effect outside the database.
const (
	E1 Point = "E1" // before effects are taken up
	E2 Point = "E2" // one is taken up, the other side not asked
	E3 Point = "E3" // the other side has answered; an error loses the answer
	E4 Point = "E4" // what follows is written, before COMMIT
	E5 Point = "E5" // committed; an error makes the outcome unknown
)

// The janitor's points.
const (
	J1 Point = "J1" // before a deletion
	J2 Point = "J2" // between two steps of it
)

// Points returns all points, in the order of the chain.
func Points() []Point {
	return []Point{
		P1, P2, P3, P4, P5,
		R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, R11,
		B1, B2, B3, B4, B5,
		C1, C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12,
		E1, E2, E3, E4, E5,
		J1, J2,
	}
}

// Variable is the environment variable that says what happens where.
const Variable = "BOXPAIR_FAULT"

// ErrInjected is wrapped by the errors that Hit returns on request.
var ErrInjected = errors.New("injected fault")
