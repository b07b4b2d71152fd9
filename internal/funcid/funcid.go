// Package funcid tells functions apart.
package funcid

import (
	"unsafe"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ID identifies a function. As long as an ID is kept, no other function gets it.
type ID unsafe.Pointer

// Of returns the ID of fn. Copies of a function have one ID. Closures that were made by two calls have
// two, if they capture variables, although their code is one, which is all that package reflect tells.
func Of(fn message.HandlerFunc) ID {
	return *(*ID)(unsafe.Pointer(&fn)) //nolint:gosec // a function is a pointer to its code and to what it captures
}
