package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Mutant is one way to break the library.
type Mutant struct {
	// Name selects the mutant: "make mutants ONLY=name".
	Name string
	// Guarantee is the broken guarantee: "G1" to "G8" of docs/guarantees.md.
	Guarantee string
	// Broken says in one sentence what goes wrong.
	Broken string

	// File is the source file, relative to the module's root. File holds Old at one place, and
	// New replaces Old.
	File, Old, New string

	// Test is the test that must fail.
	Test Test
	// Hang marks a mutant whose symptom is a test that does not end: a timeout counts as caught for
	// this mutant only.
	Hang bool
}

// Test names a test.
type Test struct {
	// Package is the test's directory, relative to the root of the repository.
	Package string
	// Name is the test function, followed by its subtests, if any, after slashes.
	Name string
}

// Module returns the directory of the test's module, relative to the root of the repository, and
// the package within the module.
func (t Test) Module() (dir, pkg string) {
	if pkg, in := strings.CutPrefix(t.Package, "test/"); in {
		return "test", "./" + pkg
	}
	if t.Package == "cmd/boxpair" {
		return t.Package, "."
	}
	return ".", "./" + t.Package
}

// Function returns the name of the test function.
func (t Test) Function() string {
	name, _, _ := strings.Cut(t.Name, "/")
	return name
}

// All returns all mutants. Their names differ.
func All() []Mutant {
	return slices.Concat(identity, writing, leasing, witnessing, handingOver, idling, relaying, ordering, deferring, routing, turns,
		claiming, hoping, grouping, misuse, operating, remembering, parking, storing, permitting, reporting, controlling, handling, calling, publishing, wiring, connecting, batches, subscribing, partitioning, embedded)
}

// Mutate returns the mutant's version of its file. root is the module's directory.
func (m *Mutant) Mutate(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.File)))
	if err != nil {
		return nil, fmt.Errorf("mutant %s: %w", m.Name, err)
	}
	if n := strings.Count(string(text), m.Old); n != 1 {
		return nil, fmt.Errorf("mutant %s: the text to replace occurs %d times in %s, not once:\n%s", m.Name, n, m.File, m.Old)
	}
	return []byte(strings.Replace(string(text), m.Old, m.New, 1)), nil
}
