package service

import (
	"context"
	"errors"
	"os"
	"os/exec"
)

// ErrNoChromium says that no Chromium is installed, and that it could not be installed.
var ErrNoChromium = errors.New("no Chromium is installed: install it (apt-get install chromium), or set TEST_CHROMIUM to its program")

// Chromium returns the path of a Chromium or Chrome for tests of pages: the one that the environment
// variable TEST_CHROMIUM names, else an installed one. Otherwise, as root on Debian, it installs the
// package chromium first. It reports its steps to say.
func Chromium(ctx context.Context, say func(format string, args ...any)) (string, error) {
	if path := os.Getenv("TEST_CHROMIUM"); path != "" {
		return path, nil
	}
	if path := findChromium(); path != "" {
		return path, nil
	}
	if err := install(ctx, []string{"chromium"}, say); err != nil {
		return "", err
	}
	if path := findChromium(); path != "" {
		return path, nil
	}
	return "", ErrNoChromium
}

func findChromium() string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
