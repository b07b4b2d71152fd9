package style

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// skips are the functions that may skip a test, and why.
var skips = map[string]string{
	"transport/transporttest.Test": "a target lacks what a case needs; Check reports that too, and the reports of ours are compared",
}

// TestNoTestIsSkipped: a test that is skipped shows nothing, and nobody reads that it did not run.
// What belongs to one system stands in a file of that system, and what a test needs it demands. To
// skip a step that rapid drew is to draw another.
func TestNoTestIsSkipped(t *testing.T) {
	t.Parallel()
	unused := make(map[string]bool)
	for name := range skips {
		unused[name] = true
	}
	eachFile(t, func(set *token.FileSet, path string, file *ast.File) {
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range skipped(file) {
			if name := filepath.ToSlash(dir) + "." + at.f.Name.Name; skips[name] != "" {
				delete(unused, name)
				continue
			}
			t.Errorf("%s: skips a test", set.Position(at.pos))
		}
	})
	for name := range unused {
		t.Errorf("%s skips nothing", name)
	}
}

func TestSkippedTestsAreFound(t *testing.T) {
	t.Parallel()
	const path = "testdata/skips.txt"
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var got, want []int
	for _, at := range skipped(file) {
		got = append(got, set.Position(at.pos).Line)
	}
	for i, line := range strings.Split(string(source), "\n") {
		if strings.HasSuffix(line, "// found") {
			want = append(want, i+1)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("found %v, want %v", got, want)
	}
}

// skipped returns where the functions of a file skip something, but for steps that rapid drew.
func skipped(file *ast.File) []place {
	var found []place
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		drawing := make(map[string]bool) // the parameters that are a *rapid.T
		ast.Inspect(f, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.Field:
				for _, name := range x.Names {
					drawing[name.Name] = isRapid(x.Type)
				}
			case *ast.CallExpr:
				receiver, method, _ := strings.Cut(called(x), ".")
				if slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, method) && !drawing[receiver] {
					found = append(found, place{pos: x.Pos(), f: f})
				}
			}
			return true
		})
	}
	return found
}

// isRapid says whether a type is *rapid.T.
func isRapid(expr ast.Expr) bool {
	if star, ok := expr.(*ast.StarExpr); ok {
		s, ok := star.X.(*ast.SelectorExpr)
		return ok && called(&ast.CallExpr{Fun: s}) == "rapid.T"
	}
	return false
}
