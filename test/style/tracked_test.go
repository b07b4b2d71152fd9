package style

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// largestKept is the size of the largest file that the repository may hold.
const largestKept = 1 << 20

// TestNoProgramIsKeptInTheRepository, nor any other large file: a clone has each of its versions.
func TestNoProgramIsKeptInTheRepository(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			continue // removed, and not committed yet
		}
		if info.Size() > largestKept {
			t.Errorf("%s has %d bytes", name, info.Size())
		}
	}
}
