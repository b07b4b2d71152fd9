package style

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// realTime are the functions that wait by the clocks of real servers and processes: there a test
// does something for a time, and does not wait for anything to be done.
var realTime = []string{"test/chain.pause", "test/matrix.pause"}

// TestTestsSleepOnlyInBubbles: a sleep of real time makes a test slow, and on a busy machine wrong.
// In a bubble of testing/synctest it takes no time and ends when it should. A receive from
// time.After that stands alone is a sleep too; in a select it is the bound of a wait.
func TestTestsSleepOnlyInBubbles(t *testing.T) {
	t.Parallel()
	packages := make(map[string][]*ast.File)
	set := token.NewFileSet()
	for _, path := range files(t, "_test.go") {
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		packages[filepath.Dir(path)] = append(packages[filepath.Dir(path)], file)
	}
	excused := 0
	for dir, list := range packages {
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range sleeps(list) {
			if at.f != nil && slices.Contains(realTime, filepath.ToSlash(rel)+"."+at.f.Name.Name) {
				excused++
				continue
			}
			t.Errorf("%s: sleeps outside of synctest.Test, as far as this test sees", set.Position(at.pos))
		}
	}
	if excused != len(realTime) {
		t.Errorf("%d sleeps by real clocks were found, want one for each of %v", excused, realTime)
	}
}

func TestSleepsOutsideOfBubblesAreFound(t *testing.T) {
	t.Parallel()
	const source = `package p

func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(1)
		go func() { <-time.After(2) }()
		within()
	})
	time.Sleep(-1)
	select {
	case <-time.After(3):
	}
}
func within() { further(); time.Sleep(4) }
func further() { within(); time.Sleep(5) }

func bubble(t *testing.T, run func()) { synctest.Test(t, func(t *testing.T) { run() }) }
func both(t *testing.T, run func()) { run(); bubble(t, run) }

func TestWrapped(t *testing.T) {
	bubble(t, func() { time.Sleep(6); shared() })
	both(t, func() { time.Sleep(-2) })
	shared()
	<-time.After(-3)
}
func shared() { time.Sleep(-4) }
func alone() { time.Sleep(-5) }

func (f *fake) Take() { time.Sleep(-6) }
func TestMethod(t *testing.T) { bubble(t, func() { f.Take(); f.take(time.Sleep) }) }

var sleep = time.Sleep
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, at := range sleeps([]*ast.File{file}) {
		got = append(got, set.Position(at.pos).Line)
	}
	var want []int
	for i, line := range strings.Split(source, "\n") {
		if strings.Contains(line, "(-") || strings.HasPrefix(line, "var sleep") {
			want = append(want, i+1)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("found %v, want %v", got, want)
	}
}

// sleeps returns where the files of a directory sleep, except in a bubble: in a function literal
// that is passed to synctest.Test, or to a function that uses it in such a literal only. Of a
// declared function it knows only the name: its body is in a bubble if all mentions of that name
// are, and if it is no exported method, which somebody may call by an interface.
func sleeps(list []*ast.File) []place {
	b := bubbles{openers: map[string]bool{"synctest.Test": true}, mentions: make(map[string][]place), quiet: make(map[string]bool)}
	for _, file := range list {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Body != nil && b.opens(f) {
				b.openers[f.Name.Name] = true
			}
		}
	}
	var asleep []place
	bounds := make(map[ast.Node]bool) // the cases of selects
	for _, file := range list {
		for _, decl := range file.Decls {
			f, _ := decl.(*ast.FuncDecl)
			b.walk(decl, func(n ast.Node, within bool) {
				at := place{n.Pos(), f, within}
				if id, ok := n.(*ast.Ident); ok && (f == nil || id != f.Name) {
					b.mentions[id.Name] = append(b.mentions[id.Name], at)
				}
				if c, ok := n.(*ast.CommClause); ok {
					bounds[c.Comm] = true
				}
				if isSleep(n) && !bounds[n] {
					asleep = append(asleep, at)
				}
			})
		}
	}
	return slices.DeleteFunc(asleep, b.inside)
}

// place is where something stands: in a declared function or outside of all, and within a literal
// that runs in a bubble or not.
type place struct {
	pos    token.Pos
	f      *ast.FuncDecl
	within bool
}

type bubbles struct {
	openers  map[string]bool // the functions that run in a bubble what they are given
	mentions map[string][]place
	quiet    map[string]bool // what is known of functions by inside
}

// opens says whether f uses a function that it is given, in bubbles only.
func (b *bubbles) opens(f *ast.FuncDecl) bool {
	given := make(map[string]bool)
	for _, field := range f.Type.Params.List {
		if _, ok := field.Type.(*ast.FuncType); ok {
			for _, name := range field.Names {
				given[name.Name] = true
			}
		}
	}
	inside, outside := false, false
	b.walk(f.Body, func(n ast.Node, within bool) {
		if id, ok := n.(*ast.Ident); ok && given[id.Name] {
			inside, outside = inside || within, outside || !within
		}
	})
	return inside && !outside
}

// walk visits node and all below, and says of each whether it is within a literal that an opener
// is given.
func (b *bubbles) walk(node ast.Node, visit func(n ast.Node, within bool)) {
	var until token.Pos // the end of the outermost such literal
	opened := make(map[*ast.FuncLit]bool)
	ast.Inspect(node, func(n ast.Node) bool {
		switch x := n.(type) {
		case nil:
			return false
		case *ast.CallExpr:
			for _, arg := range x.Args {
				if literal, ok := arg.(*ast.FuncLit); ok && b.openers[called(x)] {
					opened[literal] = true
				}
			}
		case *ast.FuncLit:
			if opened[x] {
				until = max(until, x.End())
			}
		}
		visit(n, n.Pos() < until)
		return true
	})
}

// inside says whether what stands there runs in a bubble.
func (b *bubbles) inside(at place) bool {
	if at.within || at.f == nil {
		return at.within
	}
	name := at.f.Name.Name
	if at.f.Recv != nil && at.f.Name.IsExported() {
		return false
	}
	if _, known := b.quiet[name]; !known {
		b.quiet[name] = true // for functions that mention each other
		for _, mention := range b.mentions[name] {
			if !b.inside(mention) {
				b.quiet[name] = false
			}
		}
		if len(b.mentions[name]) == 0 {
			b.quiet[name] = false
		}
	}
	return b.quiet[name]
}

// called returns the name of the function of a call, like name or package.Name.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return fmt.Sprint(f.X, ".", f.Sel.Name)
	}
	return ""
}

// isSleep says whether n is time.Sleep, called or not, or waits for nothing but time.After.
func isSleep(n ast.Node) bool {
	switch x := n.(type) {
	case *ast.SelectorExpr:
		return fmt.Sprint(x.X, ".", x.Sel.Name) == "time.Sleep"
	case *ast.ExprStmt:
		if receive, ok := x.X.(*ast.UnaryExpr); ok && receive.Op == token.ARROW {
			call, ok := receive.X.(*ast.CallExpr)
			return ok && called(call) == "time.After"
		}
	}
	return false
}
