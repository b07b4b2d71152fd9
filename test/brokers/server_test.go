package brokers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/boxpair/boxpair/internal/testenv/service"
)

// serveVariable makes this binary a server: "nats" or "kafka", a port and a directory.
const serveVariable = "BOXPAIR_BROKERS_SERVE"

// serve runs the server that the environment asks for until the standard input ends, and
// tells whether it asks for one.
func serve() (bool, error) {
	text := os.Getenv(serveVariable)
	if text == "" {
		return false, nil
	}
	var kind, dir string
	var port int
	if _, err := fmt.Sscan(text, &kind, &port, &dir); err != nil {
		return true, fmt.Errorf("%s: %w", serveVariable, err)
	}
	start := startNATS
	if kind == "kafka" {
		start = startKafka
	}
	stop, err := start(port, dir)
	if err != nil {
		return true, fmt.Errorf("%s: %w", kind, err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test is gone
	stop()
	return true, nil
}

func startNATS(port int, dir string) (func(), error) {
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return nil, fmt.Errorf("not ready within a minute")
	}
	return s.Shutdown, nil
}

func startKafka(port int, dir string) (func(), error) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(port), kfake.DefaultNumPartitions(4),
		kfake.DataDir(dir), kfake.SyncWrites())
	if err != nil {
		return nil, err
	}
	return c.Close, nil
}

// child is a server in a process of its own.
type child struct {
	kind, dir string
	port      int
	process   *exec.Cmd
	stdin     io.Closer
}

// newChild chooses a port. The directory is the caller's.
func newChild(kind, dir string) (*child, error) {
	port, err := service.FreePort()
	return &child{kind: kind, dir: dir, port: port}, err
}

func (c *child) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// start runs the server and returns when it answers.
func (c *child) start(ctx context.Context) error {
	binary, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", serveVariable, c.kind, c.port, c.dir))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("%s says %q: %w", c.kind, line, cmd.Wait())
	}
	c.process, c.stdin = cmd, stdin
	return nil
}

// kill ends the server without a shutdown.
func (c *child) kill() {
	if c.process == nil {
		return
	}
	_ = c.process.Process.Kill()
	_ = c.process.Wait() // it was killed
	_ = c.stdin.Close()
	c.process = nil
}

// restart kills the server and starts it.
func (c *child) restart(ctx context.Context) error {
	c.kill()
	return c.start(ctx)
}
