"""The tile layer: a small vocabulary of register-tile operations, with a body for GPUs and one for CPUs.

A kernel is an ordinary Python function, made by a builder that is given a *tile*: an object that holds the
operations for one half-precision type ("fp16" or "bf16"). With ``gpu.tile(dtype)`` the function is compiled
by Numba-CUDA (``compile.py``): every operation is an intrinsic that emits LLVM IR and inline PTX. With
``cpu.CpuTile(machine, dtype)`` the same, unchanged function runs in NumPy on a ``machine.Machine``, which
counts what it does and raises ``KernelError`` for what a GPU leaves undefined. The two agree bit for bit,
except for the order in which a tensor core adds up.

A *fragment* is what a warp of 32 lanes holds of a matrix: the same number of 32-bit registers in every lane,
each two half-precision elements or one float32. ``layout.py`` says which element lies where. On a GPU a
fragment is a tuple of one lane's registers, on the CPU an array [registers, 32 lanes]. A complex fragment is
one fragment: the registers of the real parts, then those of the imaginary parts.

Numbers of registers, tiles and widths are fixed when an operation is made, outside the kernel; the operation
that results is called inside. Offsets are int64, one for the warp or one for each lane.

================================================== ========================================================
made outside the kernel                            called inside
================================================== ========================================================
``lane``, ``warp``, ``block``                      ``lane()`` 0..31, ``warp()`` and ``block()`` indices
``divide``                                         ``divide(a, b)``, of integers not negative
``barrier``                                        ``barrier()``: all warps of the block meet
``warp_sync``                                      ``warp_sync()``: the warp's lanes see each other's
                                                   shared memory
``opaque``, ``small``, ``int64``                    ``opaque(n)``: turns of a loop that is not to be unrolled;
                                                   ``small(i)``: an index that fits 32 bits
``copy_async(halves)``                             ``copy(to_half, source, at, valid)``, zeros where not
                                                   valid; 8, 4, 2 or 1 elements a lane
``copy_pieces(pieces, halves, guarded=)``          ``copy(source, base, limit, index, to0, .., to3)``
``copy_words_async``                               ``copy(to_word, source, at)``, four words a lane
``commit``, ``wait(pending)``                      ``commit()`` closes a group of copies, ``wait()``
                                                   until at most ``pending`` groups are under way
``load_shared(count, width)``                      ``load(word, stride)``: chunks of ``width`` words
``load_global(count, width)``                      ``load(source, word, stride)``
``load_float``                                     ``load_float(source, at)``: one float32 for all lanes
``load_pieces(pieces, count)``                     ``load(o0, o1, o2, o3)``: gather from shared memory
``gather_halves(count)``                           two: ``load(table, word, stride)``, ``gather(base, offsets)``
``store_shared_pieces(pieces)``                    ``store(o0, o1, o2, o3, x)``: scatter to shared memory
``gather(pieces, count, halves, guarded=)``        ``load(source, base, limit, o0, o1, o2, o3)``
``store_pieces(pieces, halves, guarded=)``         ``store(target, base, limit, o0, o1, o2, o3, x)``
``mma(row_tiles, column_tiles, k_tiles)``          ``mma(a, b)``: product in float32
``dft_rows(row_tiles, column_tiles, k_tiles, ...)````dft(factor, data)``: contract the rows
``dft_columns(row_tiles, ..., k_tiles, inverse=)``  ``dft(data, factor)``: contract the columns
``pack(count, swap=)``                             ``pack(values)``: round float32 to halves
``scale(count)``                                   ``scale(values, factor)``: float32
``multiply(count)``, ``multiply_complex(count)``   ``multiply(a, b)``: elementwise, in half precision
``multiply_mirror(count, mirror_first=)``          ``multiply(x, a, m, b)``: x a + conj(m) b
``select(picks)``, ``join``                        ``select(x)``, ``join(a, b)``: registers reordered
``pair_halves(spec)``                              ``pair(x)``: halves regrouped
``pair_halves_swapped(spec)``                      ``pair(x, swap)``: low and high halves exchanged in
                                                   lanes whose ``swap`` is 1
``transpose(picks)``                               ``transpose(x)``: 8 x 8 blocks of halves transposed
================================================== ========================================================

Nothing outside this package imports ``numba.cuda``; importing the package itself imports nothing.
"""
