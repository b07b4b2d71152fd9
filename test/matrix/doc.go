// Package matrix crosses the points of the chain with faults, one test for each crossing, and
// checks after each test that no event was lost, doubled or reordered. docs/guarantees.md describes
// the points.
//
//	make matrix            # all of it
//	make matrix QUICK=1    # a part of it, under 90 seconds
//
// A cell is a chain of its own: databases, a topic, and services in separate processes, built with
// -tags faults. A process meets a fault at a named point, or one of its servers does; then the
// chain must come to rest, and package invariant checks its state. A cell whose fault did not
// happen fails, since the cell has proved nothing.
//
// Cells whose fault concerns only themselves run side by side on undisturbed servers. A fault of a
// whole server is shared by many cells: each cell waits at its own point until the fault has
// happened.
package matrix
