// Package service runs private PostgreSQL and RabbitMQ servers for tests.
//
// A server listens on a free loopback port, keeps everything it writes in a
// temporary directory of its own, and never looks at the configuration, the
// data or the ports of an installed instance. Any number of them run at once,
// in one process or in many.
//
// Binaries come from what is installed ([StartPostgres] and [StartRabbitMQ]
// look where distributions and Homebrew put them); without any, the server runs
// in Docker. [Install] adds the missing packages on Debian and its relatives.
//
// # What can go wrong
//
//   - A port is taken between the choice and the bind: the server exits, and
//     the start is tried again on other ports. A server counts as ready only
//     when it answers under the random name that this package gave it, so a
//     stranger on the same port is never taken for it.
//   - The process that started a server dies without closing it: on Linux the
//     kernel stops the server. Its temporary directory stays.
//   - PostgreSQL refuses to run as root: it runs as the user postgres, or
//     nobody.
//   - Debian's /etc/rabbitmq/rabbitmq.conf wins over RABBITMQ_NODE_PORT, and an
//     epmd outlives the node that started it: a node gets its own
//     configuration and its own epmd, in the foreground.
//
// # Test-only settings
//
// fsync, synchronous writes of pages and the disk-space alarm are off: a server
// survives the crash of its process, not of the machine. Never point anything
// but tests at one.
package service
