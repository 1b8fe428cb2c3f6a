// Asynq: Enqueue from goroutines (it has no batches); a server of some concurrency. Obeys the command line of adapter.py.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	must(err)
	return found
}

func enqueue(client *asynq.Client, goroutines, jobs int) {
	var all sync.WaitGroup
	for first := range goroutines {
		all.Add(1)
		go func() {
			defer all.Done()
			for index := first; index < jobs; index += goroutines {
				_, err := client.Enqueue(asynq.NewTask("job", fmt.Appendf(nil, "order:%014d", index)))
				must(err)
			}
		}()
	}
	all.Wait()
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

func main() {
	redis, err := asynq.ParseRedisURI(os.Args[2])
	must(err)
	beside := number(os.Args[3])
	if os.Args[1] == "work" {
		server := asynq.NewServer(redis, asynq.Config{Concurrency: beside, LogLevel: asynq.WarnLevel})
		mux := asynq.NewServeMux()
		mux.HandleFunc("job", func(context.Context, *asynq.Task) error { return nil })
		must(server.Run(mux))
		return
	}
	client := asynq.NewClient(redis)
	enqueue(client, beside, 100)
	cpuBefore, started := cpuSeconds(), time.Now()
	enqueue(client, beside, number(os.Args[4]))
	fmt.Printf(`{"took_s": %f, "cpu_s": %f}`+"\n", time.Since(started).Seconds(), cpuSeconds()-cpuBefore)
	must(client.Close())
}
