package servers

import (
	"fmt"
	"os"
	"syscall"
)

// mount makes dir a file system of its own with size bytes.
func mount(dir string, size int) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
}

func unmount(dir string) error {
	err := syscall.Unmount(dir, syscall.MNT_DETACH)
	if removed := os.RemoveAll(dir); err == nil {
		err = removed
	}
	return err
}
