package servers

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"sync"

	"github.com/boxpair/boxpair/internal/testenv/service"
)

// RabbitMQ is a RabbitMQ node for faults.
type RabbitMQ struct {
	mu   sync.Mutex
	node *service.RabbitMQ
}

// StartRabbitMQ starts a RabbitMQ node. The caller must Close it.
func StartRabbitMQ(ctx context.Context) (*RabbitMQ, error) {
	node, err := service.StartRabbitMQ(ctx)
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{node: node}
	for _, args := range [][]string{{"add_user", User, Password}, {"set_permissions", User, ".*", ".*", ".*"}} {
		if _, err := r.Ctl(ctx, args...); err != nil {
			return nil, errors.Join(err, r.Close())
		}
	}
	return r, nil
}

// Close stops the node and removes its files.
func (r *RabbitMQ) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node.Close()
}

// URL returns the node's address for [User].
func (r *RabbitMQ) URL() string {
	u, err := url.Parse(r.node.URL())
	if err != nil {
		panic(err) // it was made here
	}
	u.User = url.UserPassword(User, Password)
	return u.String()
}

// AdminURL returns the node's address for its administrator.
func (r *RabbitMQ) AdminURL() string { return r.node.URL() }

// Ctl runs rabbitmqctl against the node and returns its output.
func (r *RabbitMQ) Ctl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, r.node.Ctl(), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("rabbitmqctl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Crash kills the node with SIGKILL and starts it again. Queues declared before the crash survive:
// without [service.RabbitMQ.Settle], a new chain would lose its queues.
func (r *RabbitMQ) Crash(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.node.Settle(ctx); err != nil {
		return err
	}
	r.node.Crash()
	err := r.node.Start(ctx)
	if err == nil {
		return nil
	}
	// After a kill the node sometimes fails to start. A supervisor would start it again.
	if again := r.node.Start(ctx); again != nil {
		return errors.Join(err, again)
	}
	return nil
}

// Restart stops the broker within the node, and starts it again.
func (r *RabbitMQ) Restart(ctx context.Context) error {
	if _, err := r.Ctl(ctx, "stop_app"); err != nil {
		return err
	}
	_, err := r.Ctl(ctx, "start_app")
	return err
}

// Pause stops the node's process with a signal.
func (r *RabbitMQ) Pause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node.Pause()
}

// Resume continues a paused node.
func (r *RabbitMQ) Resume() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.node.Resume()
}

// CloseConnections makes the broker close every connection.
func (r *RabbitMQ) CloseConnections(ctx context.Context) error {
	_, err := r.Ctl(ctx, "close_all_connections", "closed by a test")
	return err
}

// BlockMemory raises the memory alarm: the broker accepts no messages.
func (r *RabbitMQ) BlockMemory(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "0.000001")
	return err
}

// UnblockMemory clears the memory alarm.
func (r *RabbitMQ) UnblockMemory(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_vm_memory_high_watermark", "0.4")
	return err
}

// BlockDisk raises the disk alarm: the broker accepts no messages.
func (r *RabbitMQ) BlockDisk(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_disk_free_limit", "90000GB")
	return err
}

// UnblockDisk clears the disk alarm.
func (r *RabbitMQ) UnblockDisk(ctx context.Context) error {
	_, err := r.Ctl(ctx, "set_disk_free_limit", "1MB")
	return err
}
