// Package mutants holds deliberately broken versions of this library: each takes
// one guarantee away, and names the test that notices. A test that passes whatever is
// done to the code shows nothing; these are the tests of the tests.
//
// A mutant is a replacement in one file, made in a copy that the compiler is given in its
// place (go build -overlay), so that the sources stay as they are and no broken code is ever
// part of the library. It is caught when the named test passes without it and fails with
// it. "make mutants" tries all of them; "make mutants-list" prints them, with the hazards that
// messaging systems are known for and the tests that show them met. docs/mutants.md tells more.
package mutants
