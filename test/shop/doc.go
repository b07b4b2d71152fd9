// Package shop is a small system for tests of what an operator sees and types: a service shop with its
// outbox, a service stock with its inbox, the relay of the command between them, and the command itself.
// Database and virtual host are the test's own.
package shop
