// Package consumertest is shared by the tests of package consumer and of package effects: real
// databases with a table of effects, messages, and child processes that are killed.
package consumertest
