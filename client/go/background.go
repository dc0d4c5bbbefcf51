package fencepost

import (
	"context"
	"sync"
)

// background counts tasks that outlive their caller: releases of leases that were given up.
type background struct {
	mutex sync.Mutex
	count int
	idle  chan struct{}
}

// run starts a task. Each task is bounded by its own retries.
func (b *background) run(task func()) {
	b.mutex.Lock()
	if b.count == 0 {
		b.idle = make(chan struct{})
	}
	b.count++
	b.mutex.Unlock()
	go func() {
		defer func() {
			b.mutex.Lock()
			defer b.mutex.Unlock()
			b.count--
			if b.count == 0 {
				close(b.idle)
			}
		}()
		task()
	}()
}

// drained waits until no task is left, or ctx ends.
func (b *background) drained(ctx context.Context) error {
	b.mutex.Lock()
	idle, count := b.idle, b.count
	b.mutex.Unlock()
	if count == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
