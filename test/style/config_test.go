package style

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// byCode are configurations that a program computes, and nobody writes down.
var byCode = []string{"producer.PublisherConfig", "schema.Config", "lineage.Config"}

// kinds say how values are written, by their types. A structure is in configParts instead.
var kinds = map[string]string{
	"time.Duration":     "duration",
	"time.Time":         "time",
	"int":               "integer",
	"float64":           "number",
	"bool":              "boolean",
	"string":            "text",
	"[]string":          "list",
	"[]Kind":            "list",
	"map[string]string": "map",
	"inbox.Isolation":   "`read committed`, `repeatable read` or `serializable`",
	"pgx.TxIsoLevel":    "`read committed`, `repeatable read` or `serializable`",
	"ShortWindow":       "`refuse` or `report`",
	"Role":              "`reader` or `operator`",
	"Topology":          "`declare`, `passive` or `none`",
	"QueueType":         "`quorum` or `classic`",
}

// configParts are the structures that configurations have inside.
var configParts = map[string]bool{
	"relay.Backoff": true, "relay.Downstream": true, "amqp.Queue": true, "audit.Expectation": true,
	"consumer.OrderConfig": true, "consumer.RetryConfig": true, "consumer.ParkedConfig": true, "consumer.GroupConfig": true,
}

// TestEverySettingHasItsNameInFilesAndInTheEnvironment reads the tags of all configurations, also
// of those that are added later: the key of a field is its name in snake case, and its variable is
// that in capitals.
func TestEverySettingHasItsNameInFilesAndInTheEnvironment(t *testing.T) {
	t.Parallel()
	list := configs(t)
	for _, c := range list {
		for _, f := range c.fields {
			if problem := wrongTags(f); problem != "" {
				t.Errorf("%s.%s: %s", c.name, f.name, problem)
			}
		}
	}
	for part := range configParts {
		if !slices.ContainsFunc(list, func(c config) bool { return c.name == part }) {
			t.Errorf("there is no %s", part)
		}
	}
	if len(list) < 20 {
		t.Errorf("there are only %d configurations: are all found?", len(list))
	}
}

func wrongTags(f field) string {
	key := snake(f.name)
	yaml, variable, prefix := f.tag.Get("yaml"), f.tag.Get("env"), f.tag.Get("envPrefix")
	switch {
	case yaml == "-" && variable == "-" && prefix == "":
		if kinds[f.kind] != "" {
			return "can be written in a file: give it a key"
		}
		return ""
	case yaml != key:
		return fmt.Sprintf("the yaml key is %q, want %q, or - for what only a program has", yaml, key)
	case f.part != "" && (prefix != strings.ToUpper(key)+"_" || variable != ""):
		return fmt.Sprintf("the envPrefix is %q, want %q", prefix, strings.ToUpper(key)+"_")
	case f.part == "" && (variable != strings.ToUpper(key) || prefix != ""):
		return fmt.Sprintf("env is %q, want %q", variable, strings.ToUpper(key))
	case f.part == "" && kinds[f.kind] == "":
		return "this test does not know how a " + f.kind + " is written"
	}
	return ""
}

func TestWrongTagsAreFound(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]string{
		`yaml:"lease_ttl" env:"LEASE_TTL"`: "",
		``:                                 `the yaml key is "", want "lease_ttl"`,
		`yaml:"leaseTTL" env:"LEASE_TTL"`:  `the yaml key is "leaseTTL", want "lease_ttl"`,
		`yaml:"lease_ttl"`:                 `env is "", want "LEASE_TTL"`,
		`yaml:"-" env:"-"`:                 "can be written in a file",
		`yaml:"lease_ttl" envPrefix:"LEASE_TTL_"`:           `env is "", want "LEASE_TTL"`,
		`yaml:"lease_ttl" env:"LEASE_TTL" envPrefix:"TTL_"`: `env is "LEASE_TTL", want "LEASE_TTL"`,
	} {
		got := wrongTags(field{name: "LeaseTTL", kind: "time.Duration", tag: reflect.StructTag(tag)})
		if !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: got %q, want %q", tag, got, want)
		}
	}
	part := field{name: "Backoff", part: "relay.Backoff", tag: `yaml:"backoff" env:"BACKOFF"`}
	if got := wrongTags(part); !strings.HasPrefix(got, `the envPrefix is "", want "BACKOFF_"`) {
		t.Errorf("got %q for a part without a prefix", got)
	}
	odd := field{name: "Odd", kind: "chan int", tag: `yaml:"odd" env:"ODD"`}
	if got := wrongTags(odd); got == "" {
		t.Error("a channel was taken for a setting")
	}
}

// TestEverySettingOfTheLibraryIsDocumented compares docs/configuration.md with the configurations;
// BOXPAIR_WRITE_DOCS=1 writes it.
func TestEverySettingOfTheLibraryIsDocumented(t *testing.T) {
	t.Parallel()
	const (
		path  = root + "/docs/configuration.md"
		begin = "<!-- settings of the library, written by go test ./test/style with BOXPAIR_WRITE_DOCS=1 -->\n"
		end   = "<!-- end of the settings of the library -->\n"
	)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has not the lines %q and %q", path, begin, end)
	}
	var b strings.Builder
	for _, c := range configs(t) {
		fmt.Fprintf(&b, "\n### %s\n\n| setting | value | default |\n|---|---|---|\n", c.name)
		for _, f := range c.fields {
			if f.tag.Get("yaml") != "-" {
				b.WriteString(row(f))
			}
		}
	}
	b.WriteString("\n")
	switch {
	case old == b.String():
	case os.Getenv("BOXPAIR_WRITE_DOCS") != "":
		if err := os.WriteFile(path, []byte(before+begin+b.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not say what the settings are: run this test with BOXPAIR_WRITE_DOCS=1", path)
	}
}

// row is the line of a setting. Its variable is not in it: that is the key in capitals, as
// TestEverySettingHasItsNameInFilesAndInTheEnvironment sees to.
func row(f field) string {
	value := kinds[f.kind]
	if f.part != "" {
		value = "those of " + f.part
		if strings.HasPrefix(f.kind, "[]") {
			value = "list of " + f.part
		}
	}
	return fmt.Sprintf("| `%s` | %s | %s |\n", f.tag.Get("yaml"), value, strings.TrimPrefix(f.fallback(), "Defaults to "))
}

// config is a configuration, or a structure inside of one.
type config struct {
	name   string // as relay.Config
	fields []field
}

type field struct {
	name, kind string
	part       string // the structure that it is, or a list of, as relay.Backoff
	tag        reflect.StructTag
	doc        string
}

var (
	sentence = regexp.MustCompile(`[^ ].*?[.](?: |$)`)
	links    = regexp.MustCompile(`\[([A-Za-z.]+)\]`)
)

// fallback returns the sentences of the comment that say what holds without the setting.
func (f field) fallback() string {
	var kept []string
	for _, s := range sentence.FindAllString(f.doc, -1) {
		if strings.HasPrefix(s, "Defaults to") || strings.HasPrefix(s, "Required") {
			kept = append(kept, strings.TrimSpace(links.ReplaceAllString(s, "$1")))
		}
	}
	return strings.ReplaceAll(strings.Join(kept, " "), "<", "&lt;")
}

// configs returns every configuration of a package that users import, and their parts.
func configs(t *testing.T) []config {
	t.Helper()
	var list []config
	for _, path := range files(t, ".go") {
		inside, _ := filepath.Rel(root, path)
		top, _, _ := strings.Cut(filepath.ToSlash(inside), "/")
		if strings.HasSuffix(path, "_test.go") || slices.Contains([]string{"internal", "bench", "cmd", "examples", "test"}, top) {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			name := file.Name.Name + "." + spec.Name.Name
			str, isStruct := spec.Type.(*ast.StructType)
			wanted := strings.HasSuffix(name, "Config") && spec.Name.IsExported() || configParts[name]
			if isStruct && wanted && !slices.Contains(byCode, name) {
				list = append(list, config{name: name, fields: fields(set, file.Name.Name, str)})
			}
			return false
		})
	}
	slices.SortFunc(list, func(a, b config) int { return strings.Compare(a.name, b.name) })
	return list
}

func fields(set *token.FileSet, pkg string, str *ast.StructType) []field {
	var list []field
	doc, last := "", str.Fields.Opening
	for _, f := range str.Fields.List {
		switch {
		case f.Doc != nil:
			doc = strings.Join(strings.Fields(f.Doc.Text()), " ")
		case set.Position(f.Pos()).Line > set.Position(last).Line+1:
			doc = ""
		}
		last = f.End()
		tag := ""
		if f.Tag != nil {
			tag, _ = strconv.Unquote(f.Tag.Value)
		}
		kind := typeName(f.Type)
		part := strings.TrimPrefix(kind, "[]")
		if !strings.Contains(part, ".") {
			part = pkg + "." + part
		}
		if !configParts[part] && !strings.HasSuffix(part, ".HandlerConfig") {
			part = ""
		}
		for _, name := range f.Names {
			if name.IsExported() {
				list = append(list, field{name: name.Name, kind: kind, part: part, tag: reflect.StructTag(tag), doc: doc})
			}
		}
	}
	return list
}

func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return typeName(x.X) + "." + x.Sel.Name
	case *ast.ArrayType:
		return "[]" + typeName(x.Elt)
	case *ast.MapType:
		return "map[" + typeName(x.Key) + "]" + typeName(x.Value)
	default: // a pointer, a function, a channel
		return fmt.Sprintf("%T", e)
	}
}

func snake(name string) string {
	letters := []rune(name)
	var b strings.Builder
	for i, c := range letters {
		if i > 0 && unicode.IsUpper(c) && (unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}
