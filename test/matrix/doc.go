// Package matrix crosses the points of the chain with the faults of the world, one
// test for each crossing, and checks after each that nothing was lost, doubled or
// reordered. See docs/guarantees.md for what the points are.
//
//	make matrix            # all of it
//	make matrix QUICK=1    # a part of it, under 90 seconds
//
// A cell is a chain of its own: databases, a topic, and services in processes of their
// own, built with -tags faults. One of them meets a fault at a named point, or what it
// depends on does; then the chain has to come to rest, and package invariant looks at what
// is there. A cell in which the fault did not come to pass fails: it has shown
// nothing.
//
// Cells whose fault concerns only themselves run side by side on servers that nothing
// happens to. What happens to a whole server happens to many cells at once: each waits
// at its own point until the server has had its fault.
package matrix
