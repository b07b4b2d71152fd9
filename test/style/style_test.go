package style

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	root          = "../.."
	fileLines     = 500
	functionLines = 80
)

func TestNoFileIsTooLong(t *testing.T) {
	t.Parallel()
	for _, path := range files(t, ".go", ".sql", ".sh") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n > fileLines {
			t.Errorf("%s has %d lines, more than %d", path, n, fileLines)
		}
	}
}

func TestNoFunctionIsTooLong(t *testing.T) {
	t.Parallel()
	eachFile(t, func(set *token.FileSet, path string, file *ast.File) {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; n > functionLines {
				t.Errorf("%s: %s has %d lines, more than %d", path, f.Name.Name, n, functionLines)
			}
		}
	})
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	t.Parallel()
	eachFile(t, func(set *token.FileSet, path string, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") || file.Name.Name == "main" {
			return
		}
		for _, node := range undocumented(set, file) {
			t.Errorf("%s:%d: %s is not documented", path, set.Position(node.Pos()).Line, node.Name)
		}
	})
}

func TestUndocumentedNamesAreFound(t *testing.T) {
	t.Parallel()
	const source = `package p

// Config is documented.
type Config struct {
	// A and the rest of the group are documented.
	A int
	B int
	C int // so is C

	Bad1 int
	hidden int
}

// Good is documented, and says what its fields are.
type Good struct { X int }

// Iface is documented.
type Iface interface {
	// Good does.
	Good()

	Bad2()
}

type Bad3 int

// Documented as a group.
const (
	E = 1
	F = 2

	Bad4 = 3
)

func (Good) Bad5() {}
func (hidden) String() string { return "" }
func Bad6() {}
var Bad7 = 1
// Fine is.
func Fine() {}
// Alone is.
var Alone = 1
type hidden struct { X int }
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, node := range undocumented(set, file) {
		got = append(got, node.Name)
	}
	if want := "[Bad1 Bad2 Bad3 Bad4 Bad5 Bad6 Bad7]"; fmt.Sprint(got) != want {
		t.Fatalf("got %v, want %s", got, want)
	}
}

// undocumented returns the exported names of file that no comment documents.
func undocumented(set *token.FileSet, file *ast.File) []*ast.Ident {
	c := &checker{set: set}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if exportedReceiver(d) {
				c.names(d.Doc != nil, d.Name)
			}
		case *ast.GenDecl:
			c.group(d)
		}
	}
	return c.found
}

type checker struct {
	set   *token.FileSet
	found []*ast.Ident
}

// names notes those of names that are exported, unless they are documented.
func (c *checker) names(documented bool, names ...*ast.Ident) {
	for _, name := range names {
		if name.IsExported() && !documented {
			c.found = append(c.found, name)
		}
	}
}

// group checks one declaration of types, constants or variables.
func (c *checker) group(d *ast.GenDecl) {
	run := run{set: c.set, documented: d.Doc != nil, last: d.Pos()}
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			c.names(s.Doc != nil || s.Comment != nil || d.Doc != nil && !d.Lparen.IsValid(), s.Name)
			if s.Name.IsExported() {
				c.members(s.Name.Name, s.Type)
			}
		case *ast.ValueSpec:
			c.names(run.covers(s, s.Doc, s.Comment), s.Names...)
		}
	}
}

// members checks the methods of an interface, and the fields of a configuration.
func (c *checker) members(name string, expr ast.Expr) {
	var list *ast.FieldList
	switch x := expr.(type) {
	case *ast.StructType:
		list = x.Fields
		if !strings.HasSuffix(name, "Config") {
			return
		}
	case *ast.InterfaceType:
		list = x.Methods
	default:
		return
	}
	run := run{set: c.set, last: list.Opening}
	for _, field := range list.List {
		c.names(run.covers(field, field.Doc, field.Comment), field.Names...) // none if embedded
	}
}

// run is a run of lines without a blank one: the comment above the first
// documents all.
type run struct {
	set        *token.FileSet
	documented bool
	last       token.Pos
}

func (r *run) covers(node ast.Node, doc, comment *ast.CommentGroup) bool {
	if r.set.Position(node.Pos()).Line > r.set.Position(r.last).Line+1 && doc == nil {
		r.documented = false
	}
	r.documented = r.documented || doc != nil
	r.last = node.End()
	return r.documented || comment != nil
}

// exportedReceiver says whether f is a function, or a method of an exported type.
func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	expr := f.Recv.List[0].Type
	for {
		switch x := expr.(type) {
		case *ast.StarExpr:
			expr = x.X
		case *ast.IndexExpr:
			expr = x.X
		case *ast.IndexListExpr:
			expr = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

func eachFile(t *testing.T, check func(*token.FileSet, string, *ast.File)) {
	t.Helper()
	for _, path := range files(t, ".go") {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		check(set, path, file)
	}
}

// files returns the module's files with one of the endings, and fails if there
// are none.
func files(t *testing.T, endings ...string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin") {
			return filepath.SkipDir
		}
		for _, ending := range endings {
			if !entry.IsDir() && strings.HasSuffix(path, ending) {
				paths = append(paths, path)
			}
		}
		return nil
	})
	if err != nil || len(paths) == 0 {
		t.Fatalf("found %d files: %v", len(paths), err)
	}
	return paths
}
