package mutants

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryMutantCompiles checks the types of a mutant's package with its change. A build of each
// mutant would take minutes; the check takes seconds, since imports are read from the compiler's
// cache.
func TestEveryMutantCompiles(t *testing.T) {
	t.Parallel()
	byDir := make(map[string][]Mutant)
	for _, m := range All() {
		if path.Ext(m.File) == ".go" {
			byDir[path.Dir(m.File)] = append(byDir[path.Dir(m.File)], m)
		}
	}
	var dirs []string
	for dir := range byDir {
		if dir != command {
			dirs = append(dirs, dir)
		}
	}
	listed, ofCommand := list(t, root, dirs), list(t, filepath.Join(root, command), []string{"."})
	for dir, mutants := range byDir {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			from := listed
			if dir == command {
				from = ofCommand
			}
			p := parse(t, from, dir)
			if err := p.check("", nil); err != nil {
				t.Fatalf("%s does not compile as it is: %v", dir, err)
			}
			for _, m := range mutants {
				text, err := m.Mutate(root)
				if err == nil {
					err = p.check(path.Base(m.File), text)
				}
				if err != nil {
					t.Errorf("mutant %s: %v", m.Name, err)
				}
			}
		})
	}
}

func TestChangeThatDoesNotCompileIsAnError(t *testing.T) {
	t.Parallel()
	const dir = "internal/pace"
	p := parse(t, list(t, root, []string{dir}), dir)
	for name, text := range map[string]string{
		"no syntax":          "package pace\nfunc {",
		"unknown name":       "package pace\nvar _ = unknown",
		"unused variable":    "package pace\nfunc _() { n := 1 }",
		"unused import":      "package pace\nimport \"fmt\"",
		"declared elsewhere": "package pace\nimport \"time\"\ntype _ struct{}\nfunc _() { time.NoSuch() }",
	} {
		if err := p.check("added.go", []byte(text)); err == nil {
			t.Errorf("%s: compiles", name)
		}
	}
}

// listedPackage is the output of "go list" for a package.
type listedPackage struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
}

// command is the directory of a module of its own.
const command = "cmd/boxpair"

// list returns the packages in dirs of the module at root and all their imports, by import path, compiled.
func list(t *testing.T, root string, dirs []string) map[string]listedPackage {
	t.Helper()
	args := []string{"list", "-deps", "-export", "-json=Dir,ImportPath,Export,GoFiles"}
	for _, dir := range dirs {
		args = append(args, "./"+dir)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	listed := make(map[string]listedPackage)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return listed
		} else if err != nil {
			t.Fatal(err)
		}
		listed[p.ImportPath] = p
	}
}

// parsedPackage is a package whose files can be replaced one at a time. One goroutine uses it.
type parsedPackage struct {
	importPath string
	fset       *token.FileSet
	files      map[string]*ast.File // by name without a directory
	importer   types.Importer
}

func parse(t *testing.T, listed map[string]listedPackage, dir string) *parsedPackage {
	t.Helper()
	const module = "github.com/boxpair/boxpair"
	about, ok := listed[path.Join(module, dir)]
	if !ok {
		t.Fatalf("go list does not know %s", dir)
	}
	p := &parsedPackage{importPath: about.ImportPath, fset: token.NewFileSet(), files: make(map[string]*ast.File)}
	for _, name := range about.GoFiles {
		file, err := parser.ParseFile(p.fset, filepath.Join(about.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files[name] = file
	}
	p.importer = importer.ForCompiler(p.fset, "gc", func(imported string) (io.ReadCloser, error) {
		if listed[imported].Export == "" {
			return nil, fmt.Errorf("no export data of %s", imported)
		}
		return os.Open(listed[imported].Export)
	})
	return p
}

// check checks the types of the package with text in place of the file name; with an empty name, it
// checks the unchanged package.
func (p *parsedPackage) check(name string, text []byte) error {
	var files []*ast.File
	if name != "" {
		file, err := parser.ParseFile(p.fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, file)
	}
	for other, file := range p.files {
		if other != name {
			files = append(files, file)
		}
	}
	var all []string
	config := types.Config{Importer: p.importer, Error: func(err error) { all = append(all, err.Error()) }}
	_, err := config.Check(p.importPath, p.fset, files, nil)
	if len(all) > 0 {
		return errors.New(strings.Join(all, "\n"))
	}
	return err
}
