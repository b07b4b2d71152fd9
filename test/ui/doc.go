// Package ui tests the pages of the dashboard in a headless Chromium: pages fit and are readable, their
// actions work with and without JavaScript, and pages send no request to other servers. With
// BOXPAIR_WRITE_DOCS=1 the tests also take the pictures in docs/images.
package ui
