// Package ui tests the pages of the dashboard in a headless Chromium: that they fit, that they can be
// read, that their actions work with and without JavaScript, and that they ask nobody else for
// anything. With BOXPAIR_WRITE_DOCS=1 it also takes the pictures in docs/images.
package ui
