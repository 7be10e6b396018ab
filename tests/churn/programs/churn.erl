%% Churn in Erlang: processes. See ../README.md for what goes over the wire.
%%   erl -noshell -run churn main server PORT BESIDE
%%   erl -noshell -run churn main client PORT PROCESSES REQUESTS SIZE END SECONDS BESIDE SEED
-module(churn).
-export([main/1]).

-define(PERIOD, 65521).
-define(CHUNK, 65536).
-define(PATIENCE, 20000).
-define(MASK, 16#FFFFFFFF).

main(["server", Port, Beside]) ->
    prepare(),
    start_beside(Beside),
    server(list_to_integer(Port));
main(["client", Port, Processes, Requests, Size, End, Seconds, Beside, Seed]) ->
    prepare(),
    start_beside(Beside),
    [P, N, R, S, D, First] = [list_to_integer(Word) || Word <- [Port, Processes, Requests, Size, Seconds, Seed]],
    client(P, N, R, S, list_to_atom(End), D, First),
    halt(0).

prepare() ->
    {Bytes, _} = lists:mapfoldl(fun(_, X) ->
                                        Y = (X * 1103515245 + 12345) band 16#7fffffff,
                                        {(Y bsr 16) band 255, Y}
                                end, 12345, lists:seq(1, ?PERIOD)),
    One = list_to_binary(Bytes),
    persistent_term:put(table, <<One/binary, One/binary, One/binary>>),
    persistent_term:put(counts, counters:new(3, [])).

say(Format, Words) -> io:put_chars(io_lib:format(Format ++ "~n", Words)).

add(Which, Number) -> counters:add(persistent_term:get(counts), Which, Number).
count(Which) -> counters:get(persistent_term:get(counts), Which).
over() -> count(3) > 0.

mix(X) ->
    A = (X * 2654435761) band ?MASK,
    B = ((A bxor (A bsr 15)) * 2246822519) band ?MASK,
    B bxor (B bsr 13).

size_of(Id, K, Most) ->
    H = mix((Id + K * 40503) band ?MASK),
    Limit = case H rem 8 of 0 -> Most; _ -> Most div 50 end,
    1 + (H div 8) rem max(Limit, 1).

content(Id, Direction, Position, Length) ->
    Start = (mix(((Id * 2 + Direction) band ?MASK) bxor 16#9e3779b9) rem ?PERIOD + Position) rem ?PERIOD,
    binary:part(persistent_term:get(table), Start, Length).

put(_, _, _, _, 0, _) -> ok;
put(Socket, Id, Direction, Position, Length, MayBreak) ->
    Part = min(Length, ?CHUNK),
    case gen_tcp:send(Socket, content(Id, Direction, Position, Part)) of
        ok -> put(Socket, Id, Direction, Position + Part, Length - Part, MayBreak);
        {error, Why} -> fail(send, Id, Why, MayBreak)
    end.

%% Receives and checks; `false` when the end came before a byte of it.
take(Socket, Id, Direction, Position, Length, MayBreak) -> take(Socket, Id, Direction, Position, Length, 0, MayBreak).
take(_, _, _, _, Length, Length, _) -> true;
take(Socket, Id, Direction, Position, Length, Got, MayBreak) ->
    %% Every second connection takes what there is, the others ask for so many bytes.
    Part = min(Length - Got, ?CHUNK),
    Ask = case Id rem 2 of 0 -> Part; 1 when Length - Got > ?CHUNK -> Part; 1 -> 0 end,
    case gen_tcp:recv(Socket, Ask, ?PATIENCE) of
        {ok, Data} when byte_size(Data) > Length - Got ->
            say("error too much came: ~b bytes of connection ~b", [byte_size(Data) - Length + Got, Id]),
            throw(broken);
        {ok, Data} ->
            check(Id, Direction, Position + Got, Data),
            take(Socket, Id, Direction, Position, Length, Got + byte_size(Data), MayBreak);
        {error, closed} when Got =:= 0 -> false;
        {error, Why} -> fail('receive', Id, Why, MayBreak)
    end.

check(Id, Direction, Position, Data) when byte_size(Data) > ?CHUNK ->
    <<First:?CHUNK/binary, Rest/binary>> = Data,
    check(Id, Direction, Position, First),
    check(Id, Direction, Position + ?CHUNK, Rest);
check(Id, Direction, Position, Data) ->
    case content(Id, Direction, Position, byte_size(Data)) of
        Data -> ok;
        Right ->
            Same = binary:longest_common_prefix([Data, Right]),
            Wrong = length([x || {A, B} <- lists:zip(binary_to_list(Data), binary_to_list(Right)), A =/= B]),
            say("wrong ~b bytes from position ~b of connection ~b", [Wrong, Position + Same, Id])
    end.

fail(Where, Id, timeout, _) ->
    say("timeout ~p of connection ~b", [Where, Id]),
    throw(broken);
fail(Where, Id, Why, false) ->
    say("error ~p of connection ~b: ~p", [Where, Id, Why]),
    throw(broken);
fail(_, _, _, true) -> throw(broken).

options() -> [binary, {active, false}, {packet, raw}, {nodelay, true}, {send_timeout, ?PATIENCE}, {exit_on_close, false}, {ip, {127, 0, 0, 1}}].

server(Port) ->
    {ok, Listener} = gen_tcp:listen(Port, [{backlog, 1000}, {reuseaddr, true} | options()]),
    say("ready", []),
    accept(Listener).

accept(Listener) ->
    case gen_tcp:accept(Listener) of
        {ok, Socket} ->
            Server = spawn(fun() -> receive go -> catch serve(Socket) end, gen_tcp:close(Socket) end),
            gen_tcp:controlling_process(Socket, Server),
            Server ! go;
        {error, Why} -> say("error accept: ~p", [Why])
    end,
    accept(Listener).

serve(Socket) ->
    case gen_tcp:recv(Socket, 16, ?PATIENCE) of
        {ok, <<"MCHN", Id:32, Most:32, End:32>>} -> serve(Socket, Id, Most, lists:nth(End + 1, [close, linger0, half, kill]), 0, 0);
        {ok, _} -> say("wrong 16 bytes of a greeting", []);
        _ -> ok
    end.

serve(Socket, Id, Most, End, K, Position) ->
    MayBreak = End =:= linger0 orelse End =:= kill,
    Length = size_of(Id, K, Most),
    case take(Socket, Id, 0, Position, Length, MayBreak) of
        true ->
            put(Socket, Id, 1, Position, Length, MayBreak),
            serve(Socket, Id, Most, End, K + 1, Position + Length);
        false when End =:= half -> put(Socket, Id, 1, Position, size_of(Id, 65535, Most), false);
        false -> ok
    end.

client(Port, Processes, Requests, Most, End, Seconds, Seed) ->
    Self = self(),
    [spawn(fun() -> churn(Port, (Seed + I * 1000003) band ?MASK, Requests, Most, End), Self ! done end) || I <- lists:seq(0, Processes - 1)],
    [begin timer:sleep(100), say("progress ~b ~b", [count(1), count(2)]) end || _ <- lists:seq(1, Seconds * 10)],
    add(3, 1),
    [receive done -> ok end || _ <- lists:seq(1, Processes)],
    say("done ~b ~b", [count(1), count(2)]).

churn(Port, Id, Requests, Most, End) ->
    case over() of
        true -> ok;
        false ->
            catch connection(Port, Id, Requests, Most, End),
            churn(Port, (Id + 1) band ?MASK, Requests, Most, End)
    end.

connection(Port, Id, Requests, Most, End) ->
    case gen_tcp:connect({127, 0, 0, 1}, Port, lists:keydelete(ip, 1, options()), ?PATIENCE) of
        {error, Why} ->
            Why =:= eaddrnotavail orelse say("error connect of connection ~b: ~p", [Id, Why]),
            timer:sleep(10);
        {ok, Socket} ->
            add(1, 1),
            try
                Number = case End of close -> 0; linger0 -> 1; half -> 2; kill -> 3 end,
                ok = gen_tcp:send(Socket, <<"MCHN", Id:32, Most:32, Number:32>>),
                Position = ask(Socket, Id, Requests, Most, 0, 0),
                ending(End, Socket, Id, Most, Position)
            catch
                throw:broken -> ok;
                _:Error -> say("error of connection ~b: ~p", [Id, Error])
            after
                gen_tcp:close(Socket)
            end
    end.

ask(Socket, Id, Requests, Most, K, Position) ->
    case K < Requests andalso not over() of
        false -> Position;
        true ->
            Length = size_of(Id, K, Most),
            put(Socket, Id, 0, Position, Length, false),
            case take(Socket, Id, 1, Position, Length, false) of
                true -> ok;
                false ->
                    say("error the end came in place of an answer of connection ~b", [Id]),
                    throw(broken)
            end,
            add(2, 2 * Length),
            ask(Socket, Id, Requests, Most, K + 1, Position + Length)
    end.

ending(half, Socket, Id, Most, Position) ->
    ok = gen_tcp:shutdown(Socket, write),
    case take(Socket, Id, 1, Position, size_of(Id, 65535, Most), false) of
        false -> say("error nothing came after the half close of connection ~b", [Id]);
        true ->
            case gen_tcp:recv(Socket, 1, ?PATIENCE) of
                {error, closed} -> ok;
                Other -> say("error no end after the half close of connection ~b: ~p", [Id, Other])
            end
    end;
ending(linger0, Socket, _, _, _) -> inet:setopts(Socket, [{linger, {true, 0}}]);
ending(_, _, _, _, _) -> ok.

start_beside("none") -> ok;
start_beside(_) -> spawn(fun beside/0).

beside() ->
    Port = open_port({spawn_executable, "/bin/true"}, [exit_status]),
    receive {Port, {exit_status, _}} -> ok end,
    timer:sleep(rand:uniform(20)),
    beside().
