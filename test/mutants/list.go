package mutants

import (
	"fmt"
	"io"
	"strings"
)

// List writes each mutant with its broken guarantee and its test, and then, with hazards, the known
// hazards with their tests.
func List(w io.Writer, list []Mutant, hazards bool) error {
	var b strings.Builder
	for _, m := range list {
		fmt.Fprintf(&b, "%s (%s): %s\n    %s\n", m.Name, m.Guarantee, m.Broken, m.Test)
	}
	if hazards {
		b.WriteString("\nKnown hazards, and the tests that show them met:\n\n")
		for _, h := range Hazards() {
			fmt.Fprintln(&b, h.Text)
			for _, t := range h.Tests {
				fmt.Fprintf(&b, "    %s\n", t)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String returns the package and the name of t.
func (t Test) String() string { return t.Package + " " + t.Name }
