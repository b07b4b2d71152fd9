package style

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// TestCoreOfTheRelayStartsNoGoroutine: it is tested without the race detector.
func TestCoreOfTheRelayStartsNoGoroutine(t *testing.T) {
	t.Parallel()
	read := 0
	eachFile(t, func(set *token.FileSet, path string, file *ast.File) {
		if !strings.Contains(path, "producer/relay/internal/core/") || strings.HasSuffix(path, "_test.go") {
			return
		}
		read++
		ast.Inspect(file, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: starts a goroutine", set.Position(n.Pos()))
			}
			return true
		})
	})
	if read < 10 {
		t.Errorf("only %d files of the core were read", read)
	}
}
